//! The files of a COLMAP model, as text and binary (<https://colmap.github.io/format.html>).

use nalgebra::Vector3;

use super::{Image, Seed};
use crate::ExportError;
use crate::pending::PendingFile;
use crate::pose::quaternion;

/// Writes a file: images, points, and the points in world coordinates.
type Contents = fn(&mut PendingFile, &[Image], &[Seed], &[Vector3<f64>]) -> Result<(), ExportError>;

pub(super) const NAMES: [&str; 6] =
    ["cameras.txt", "images.txt", "points3D.txt", "cameras.bin", "images.bin", "points3D.bin"];

/// In the order of [`NAMES`].
pub(super) const CONTENTS: [Contents; 6] =
    [text_cameras, text_images, text_points, binary_cameras, binary_images, binary_points];

/// COLMAP's number for the PINHOLE model: fx, fy, cx, cy.
const PINHOLE: i32 = 1;

/// Quaternion w x y z and translation, world to camera.
fn pose(image: &Image) -> ([f64; 4], [f64; 3]) {
    let world_to_camera = image.camera_to_world.inverse();
    let [x, y, z, w] = quaternion(&world_to_camera);
    ([w, x, y, z], world_to_camera.translation.vector.into())
}

fn parameters(image: &Image) -> [f64; 4] {
    [image.intrinsics.fx, image.intrinsics.fy, image.intrinsics.cx, image.intrinsics.cy]
}

fn spaced(values: impl IntoIterator<Item = f64>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}

fn text_cameras(file: &mut PendingFile, images: &[Image], _: &[Seed], _: &[Vector3<f64>]) -> Result<(), ExportError> {
    file.append(b"# CAMERA_ID MODEL WIDTH HEIGHT fx fy cx cy\n")?;
    for (at, image) in images.iter().enumerate() {
        let ([width, height], values) = (image.size, spaced(parameters(image)));
        file.append(format!("{} PINHOLE {width} {height} {values}\n", at + 1).as_bytes())?;
    }
    Ok(())
}

fn text_images(file: &mut PendingFile, images: &[Image], _: &[Seed], _: &[Vector3<f64>]) -> Result<(), ExportError> {
    file.append(b"# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME (world to camera)\n# X Y POINT3D_ID ...\n")?;
    for (at, image) in images.iter().enumerate() {
        let (rotation, translation) = pose(image);
        let values = spaced(rotation.into_iter().chain(translation));
        let points = image.observations.iter().map(|([x, y], point)| format!("{x} {y} {}", point + 1));
        let points = points.collect::<Vec<_>>().join(" ");
        file.append(format!("{0} {values} {0} {1}\n{points}\n", at + 1, image.name).as_bytes())?;
    }
    Ok(())
}

fn text_points(
    file: &mut PendingFile,
    _: &[Image],
    points: &[Seed],
    worlds: &[Vector3<f64>],
) -> Result<(), ExportError> {
    file.append(b"# POINT3D_ID X Y Z R G B ERROR IMAGE_ID POINT2D_IDX ...\n")?;
    for (at, (point, world)) in points.iter().zip(worlds).enumerate() {
        let [red, green, blue] = point.colour;
        let track = point.track.iter().map(|(image, observation)| format!(" {} {observation}", image + 1));
        let track = track.collect::<String>();
        let position = spaced(world.iter().copied());
        file.append(format!("{} {position} {red} {green} {blue} 0{track}\n", at + 1).as_bytes())?;
    }
    Ok(())
}

/// Little-endian fields of a record.
#[derive(Default)]
struct Record(Vec<u8>);

impl Record {
    fn floats(&mut self, values: &[f64]) -> &mut Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    fn long(&mut self, value: usize) -> &mut Self {
        self.0.extend((value as u64).to_le_bytes());
        self
    }

    fn short(&mut self, value: usize) -> &mut Self {
        // Numbers of images and of their observations: COLMAP has 32 bits for them.
        self.0.extend((value as u32).to_le_bytes());
        self
    }
}

fn binary_cameras(file: &mut PendingFile, images: &[Image], _: &[Seed], _: &[Vector3<f64>]) -> Result<(), ExportError> {
    file.append(&Record::default().long(images.len()).0)?;
    for (at, image) in images.iter().enumerate() {
        let mut record = Record::default();
        record.short(at + 1).0.extend(PINHOLE.to_le_bytes());
        let [width, height] = image.size.map(|size| size as usize);
        file.append(&record.long(width).long(height).floats(&parameters(image)).0)?;
    }
    Ok(())
}

fn binary_images(file: &mut PendingFile, images: &[Image], _: &[Seed], _: &[Vector3<f64>]) -> Result<(), ExportError> {
    file.append(&Record::default().long(images.len()).0)?;
    for (at, image) in images.iter().enumerate() {
        let (rotation, translation) = pose(image);
        let mut record = Record::default();
        record.short(at + 1).floats(&rotation).floats(&translation).short(at + 1);
        record.0.extend(image.name.bytes());
        record.0.push(0);
        record.long(image.observations.len());
        for (position, point) in &image.observations {
            record.floats(position).long(point + 1);
        }
        file.append(&record.0)?;
    }
    Ok(())
}

fn binary_points(
    file: &mut PendingFile,
    _: &[Image],
    points: &[Seed],
    worlds: &[Vector3<f64>],
) -> Result<(), ExportError> {
    file.append(&Record::default().long(points.len()).0)?;
    for (at, (point, world)) in points.iter().zip(worlds).enumerate() {
        let mut record = Record::default();
        record.long(at + 1).floats(world.as_slice()).0.extend(point.colour);
        record.floats(&[0.0]).long(point.track.len());
        for (image, observation) in &point.track {
            record.short(image + 1).short(*observation);
        }
        file.append(&record.0)?;
    }
    Ok(())
}
