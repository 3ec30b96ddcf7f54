//! Points of all frames, merged into a file of records of one size.

use std::path::Path;

use crate::pending::PendingFile;
use crate::{ExportError, Point, PointOptions, PointSelection};

/// Appends the record of a point: its position as three float32, little-endian, and what else the format has.
pub(crate) type Encode = fn(&Point, &mut Vec<u8>);

/// A file with a header of fixed length and a record per point. Each frame's points are written at once and not kept in
/// memory. When there are too many, the file is thinned in place.
pub(crate) struct MergedPoints {
    pub(crate) file: PendingFile,
    pub(crate) selection: PointSelection,
    encode: Encode,
    /// Bytes of a record.
    size: usize,
    /// Bytes of the header.
    header: u64,
    /// Points in the file.
    pub(crate) count: u64,
    /// Smallest and largest coordinates.
    pub(crate) bounds: Bounds,
}

/// Smallest and largest coordinates of points.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) min: [f32; 3],
    pub(crate) max: [f32; 3],
}

impl Default for Bounds {
    fn default() -> Self {
        Self { min: [f32::INFINITY; 3], max: [f32::NEG_INFINITY; 3] }
    }
}

impl Bounds {
    pub(crate) fn add(&mut self, position: [f32; 3]) {
        for (axis, &x) in position.iter().enumerate() {
            self.min[axis] = self.min[axis].min(x);
            self.max[axis] = self.max[axis].max(x);
        }
    }
}

impl MergedPoints {
    /// Begins the file `name` in `folder`, which is created if needed, with `header`.
    pub(crate) fn begin(
        folder: &Path,
        name: &str,
        header: &[u8],
        encode: Encode,
        options: PointOptions,
    ) -> Result<Self, ExportError> {
        let mut file = PendingFile::begin(folder, name)?;
        file.append(header)?;
        let mut record = Vec::new();
        encode(&Point { position: [0.0; 3], colour: [0; 3], confidence: 0.0, pixel: [0; 2] }, &mut record);
        Ok(Self {
            file,
            selection: PointSelection::new(options),
            encode,
            size: record.len(),
            header: header.len() as u64,
            count: 0,
            bounds: Bounds::default(),
        })
    }

    /// Writes points of the selection.
    pub(crate) fn write(&mut self, points: &[Point]) -> Result<(), ExportError> {
        let mut records = Vec::with_capacity(points.len() * self.size);
        for point in points {
            (self.encode)(point, &mut records);
        }
        self.file.append(&records)?;
        self.count += points.len() as u64;
        for point in points {
            self.bounds.add(point.position);
        }
        while self.selection.is_full() {
            self.thin()?;
        }
        Ok(())
    }

    /// Keeps the points that larger voxels keep.
    fn thin(&mut self) -> Result<(), ExportError> {
        let Self { file, selection, count, bounds, .. } = self;
        selection.coarsen();
        (*count, *bounds) = (0, Bounds::default());
        file.retain(self.header, self.size, |record| {
            let (coordinates, _) = record.as_chunks::<4>();
            let position = [0, 1, 2].map(|axis| f32::from_le_bytes(coordinates[axis]));
            let keep = selection.keep(position);
            if keep {
                *count += 1;
                bounds.add(position);
            }
            keep
        })
    }
}
