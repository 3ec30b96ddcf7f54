//! A frame in the pixels of the original picture, as COLMAP, nerfstudio and trainers of splats see it.
//!
//! Positions count from the edge of the picture: the centre of the first pixel is at (0.5, 0.5). Depth maps are
//! unprojected at whole pixel numbers, so the principal point is half a network pixel beyond that of
//! [`Intrinsics::in_original`].

use periplus_geometry::{FrameOutput, Intrinsics, Viewport};

/// The camera of the original picture. `None` if its pose or intrinsics are not finite.
pub(crate) fn camera(frame: &FrameOutput) -> Option<Intrinsics> {
    let mut intrinsics = frame.intrinsics.in_original(&frame.viewport);
    intrinsics.cx += 0.5 / frame.viewport.scale[0];
    intrinsics.cy += 0.5 / frame.viewport.scale[1];
    let Intrinsics { fx, fy, cx, cy } = intrinsics;
    let pose = frame.camera_to_world.to_homogeneous();
    [fx, fy, cx, cy].iter().chain(pose.iter()).all(|value| value.is_finite()).then_some(intrinsics)
}

/// The position of a network pixel in the original picture.
pub(crate) fn in_picture(pixel: [f64; 2], viewport: &Viewport) -> [f64; 2] {
    [0, 1].map(|axis| (pixel[axis] + 0.5 - viewport.offset[axis]) / viewport.scale[axis])
}

/// The name of the picture: as the source names it, `frame_000000` and so on without a name.
pub(crate) fn name(frame: &FrameOutput) -> String {
    // A line break in a name would break text files.
    let name = frame.name.as_deref().map(|name| name.replace(char::is_control, "_"));
    name.unwrap_or_else(|| format!("frame_{:06}", frame.index))
}
