//! A COLMAP model: cameras, images, and points with tracks.

mod files;

use std::collections::VecDeque;
use std::path::Path;

use nalgebra::{Isometry3, Point3, Vector3};
use periplus_geometry::{FrameOutput, Intrinsics, Raster, Viewport};

use crate::folder::CreatedFolder;
use crate::original::{self, in_picture};
use crate::pending::PendingFile;
use crate::sink::depth_map;
use crate::{ExportError, Point, PointOptions, PointSelection, Revision, Sink, Summary};

/// Frames before the current one in which its points are looked for.
const TRACKED_FRAMES: usize = 4;

/// Largest relative difference between the depth of a point and that of the surface in its direction.
const SAME_DEPTH: f64 = 0.02;

/// Points of a model. They are held in memory, and seed splats, of which a trainer makes more where they are missing.
const MOST_POINTS: usize = 1_000_000;

/// `colmap/sparse/0`: a model that COLMAP, nerfstudio and splat trainers read, as text (`cameras.txt`, `images.txt`,
/// `points3D.txt`) and binary (`.bin`).
///
/// - Poses are world to camera. Camera and image `n` belong to frame `n - 1` of the stream: identifiers count from 1.
/// - Each image has its own PINHOLE camera at the resolution of the original picture, because the network estimates
///   intrinsics per frame. COLMAP puts the centre of the first pixel at (0.5, 0.5), and depth maps are unprojected at
///   whole pixel numbers, so the principal point is half a network pixel beyond that of [`Intrinsics::in_original`].
/// - Images are named as the source names the frames, `frame_000000` and so on without a name.
/// - Points are those of a [`PointSelection`]. If it keeps none of the first frame, all points of that frame are taken, because
///   splat trainers need points. A track holds the frame of the point, and of the four frames before it those that see a
///   surface at the same depth (within 2 %).
/// - Frames whose pose or intrinsics are not finite are left out.
///
/// The model is held in memory until the run ends: some 150 bytes per point, and no more than a million points.
pub struct Colmap {
    // Dropped in this order: the files, then the folder if nothing is in it.
    files: Vec<PendingFile>,
    folder: CreatedFolder,
    selection: PointSelection,
    images: Vec<Image>,
    points: Vec<Seed>,
    recent: VecDeque<Seen>,
}

/// One picture and its camera.
struct Image {
    /// Index of the frame in the stream.
    index: usize,
    name: String,
    camera_to_world: Isometry3<f64>,
    /// Factor of a revision for the depth.
    scale: f64,
    /// At the original resolution, with COLMAP's principal point.
    intrinsics: Intrinsics,
    size: [u32; 2],
    /// Position in the picture, and which of the points is seen there.
    observations: Vec<([f64; 2], usize)>,
}

/// A point with its track.
struct Seed {
    /// In camera coordinates of the first image of the track.
    position: Vector3<f64>,
    colour: [u8; 3],
    /// Images that see it, and which of their observations it is.
    track: Vec<(usize, usize)>,
}

/// A frame in which points of later frames are looked for.
struct Seen {
    image: usize,
    world_to_camera: Isometry3<f64>,
    intrinsics: Intrinsics,
    viewport: Viewport,
    depth: Raster<f32>,
}

impl Colmap {
    /// Begins the files in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If the folder cannot be created or a file cannot be written.
    pub fn create(folder: &Path, options: PointOptions) -> Result<Self, ExportError> {
        let folder = CreatedFolder::create(&folder.join("colmap/sparse/0"))?;
        let files = files::NAMES.iter().map(|name| PendingFile::begin(&folder.path, name));
        Ok(Self {
            files: files.collect::<Result<_, _>>()?,
            selection: PointSelection::new(PointOptions { max_points: options.max_points.min(MOST_POINTS), ..options }),
            images: Vec::new(),
            points: Vec::new(),
            recent: VecDeque::new(),
            folder,
        })
    }

    /// World coordinates of a point.
    fn world(&self, seed: &Seed) -> Vector3<f64> {
        let first = seed.track.first().and_then(|&(image, _)| self.images.get(image));
        first.map_or(seed.position, |image| (image.camera_to_world * Point3::from(seed.position * image.scale)).coords)
    }

    /// Adds the points of the last image, with tracks into recent frames.
    fn track(&mut self, frame: &FrameOutput, selected: &[Point], depth: &Raster<f32>) {
        let image = self.images.len() - 1;
        for point in selected {
            let [x, y] = point.pixel;
            let Some(&z) = depth.get(x, y) else { continue };
            let pixel = [x as f64, y as f64];
            let position = frame.intrinsics.unproject(pixel[0], pixel[1], z.into());
            let world = frame.camera_to_world * Point3::from(position);
            let own = (image, in_picture(pixel, &frame.viewport));
            let others = self.recent.iter().filter_map(|seen| Some((seen.image, seen.find(&world)?)));
            let number = self.points.len();
            let mut track = Vec::new();
            for (image, at) in std::iter::once(own).chain(others) {
                let observations = &mut self.images[image].observations;
                track.push((image, observations.len()));
                observations.push((at, number));
            }
            self.points.push(Seed { position, colour: point.colour, track });
        }
    }
}

impl Colmap {
    /// Keeps the points that larger voxels keep, and their observations.
    fn thin(&mut self) {
        self.selection.coarsen();
        let worlds: Vec<Vector3<f64>> = self.points.iter().map(|seed| self.world(seed)).collect();
        let mut points = Vec::new();
        // The new number of each point that stays.
        let numbers: Vec<Option<usize>> = std::mem::take(&mut self.points)
            .into_iter()
            .zip(worlds)
            .map(|(seed, world)| {
                let keep = self.selection.keep([world.x as f32, world.y as f32, world.z as f32]);
                keep.then(|| {
                    points.push(Seed { track: Vec::with_capacity(seed.track.len()), ..seed });
                    points.len() - 1
                })
            })
            .collect();
        self.points = points;
        // Later images first: a track begins with the frame of its point, the last of its images.
        for (at, image) in self.images.iter_mut().enumerate().rev() {
            let observations = std::mem::take(&mut image.observations);
            let stay = observations.into_iter().filter_map(|(position, point)| Some((position, numbers[point]?)));
            image.observations = stay.collect();
            for (observation, &(_, point)) in image.observations.iter().enumerate() {
                self.points[point].track.push((at, observation));
            }
        }
    }
}

impl Seen {
    /// Where the original picture shows `point`, if the frame sees a surface there.
    fn find(&self, point: &Point3<f64>) -> Option<[f64; 2]> {
        let point = (self.world_to_camera * point).coords;
        if point.z <= 0.0 {
            return None;
        }
        let [u, v] = self.intrinsics.project(&point);
        let ([x, y], size) = ([u.round(), v.round()], [self.depth.width() as f64, self.depth.height() as f64]);
        if !(0.0..size[0]).contains(&x) || !(0.0..size[1]).contains(&y) {
            return None;
        }
        let depth = f64::from(*self.depth.get(x as usize, y as usize)?);
        let at = in_picture([u, v], &self.viewport);
        let inside = (0..2).all(|axis| (0.0..=f64::from(self.viewport.original[axis])).contains(&at[axis]));
        (inside && (point.z - depth).abs() <= SAME_DEPTH * depth).then_some(at)
    }
}

impl Sink for Colmap {
    fn write(&mut self, frame: &FrameOutput) -> Result<(), ExportError> {
        let map = depth_map(frame, &self.folder.path)?;
        let Some(intrinsics) = original::camera(frame) else { return Ok(()) };
        self.images.push(Image {
            index: frame.index,
            name: original::name(frame),
            camera_to_world: frame.camera_to_world,
            scale: 1.0,
            intrinsics,
            size: frame.viewport.original,
            observations: Vec::new(),
        });
        let selected = self.selection.select_seeds(frame, map);
        self.track(frame, &selected, &map.depth);
        while self.selection.is_full() {
            self.thin();
        }
        self.recent.push_back(Seen {
            image: self.images.len() - 1,
            world_to_camera: frame.camera_to_world.inverse(),
            intrinsics: frame.intrinsics,
            viewport: frame.viewport,
            depth: map.depth.clone(),
        });
        if self.recent.len() > TRACKED_FRAMES {
            self.recent.pop_front();
        }
        Ok(())
    }

    fn revise(&mut self, revisions: &[Revision]) -> Result<(), ExportError> {
        for revision in revisions {
            // In order of the index, since frames are written in that order.
            let Ok(at) = self.images.binary_search_by_key(&revision.index, |image| image.index) else { continue };
            let image = &mut self.images[at];
            image.camera_to_world = revision.camera_to_world;
            image.scale = revision.scale;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Summary, ExportError> {
        let summary = Summary::of_file(&self.folder.path, self.images.len(), Some(self.selection.note()));
        if !self.images.is_empty() {
            let worlds: Vec<Vector3<f64>> = self.points.iter().map(|seed| self.world(seed)).collect();
            for (mut file, contents) in std::mem::take(&mut self.files).into_iter().zip(files::CONTENTS) {
                contents(&mut file, &self.images, &self.points, &worlds)?;
                file.commit()?;
            }
        }
        Ok(summary)
    }
}
