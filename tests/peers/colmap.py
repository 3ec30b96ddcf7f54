"""Reads a COLMAP model with pycolmap and checks it against the depth maps of the same run.

    periplus stream FRAMES --out RUN --save npz,kitti,colmap
    python tests/peers/colmap.py RUN

Needs numpy and pycolmap.
"""

import sys
from pathlib import Path

import numpy as np
import pycolmap

run = Path(sys.argv[1])
folder = run / "colmap/sparse/0"
kitti = np.loadtxt(run / "poses_kitti.txt").reshape(-1, 3, 4)
models = []
for kind in ("text", "binary"):
    model = pycolmap.Reconstruction()
    getattr(model, f"read_{kind}")(str(folder))
    models.append(model)
text, binary = models
assert text.num_images() == binary.num_images() > 0
assert text.num_points3D() == binary.num_points3D() > 0

worst = {"text and binary": 0.0, "centre": 0.0, "observation": 0.0, "pixel": 0.0}
for number, image in binary.images.items():
    centre = image.projection_center()
    worst["text and binary"] = max(worst["text and binary"], np.abs(centre - text.images[number].projection_center()).max())
    worst["centre"] = max(worst["centre"], np.abs(centre - kitti[number - 1][:, 3]).max())

# Points unprojected from a depth map project to the centres of their pixels in the original picture.
for number, image in binary.images.items():
    frame = np.load(run / f"npz/{number - 1:06}.npz")
    depth, k, pose = frame["depth"].astype(float), frame["intrinsics"].astype(float), kitti[number - 1]
    height, width = depth.shape
    v, u = np.mgrid[0:height, 0:width]
    rays = np.stack([(u - k[0, 2]) / k[0, 0], (v - k[1, 2]) / k[1, 1], np.ones_like(depth)], -1)
    world = (rays * depth[..., None]).reshape(-1, 3) @ pose[:, :3].T + pose[:, 3]
    camera = image.camera
    local = world @ image.cam_from_world().rotation.matrix().T + image.cam_from_world().translation
    fx, fy, cx, cy = camera.params
    seen = local[:, :2] / local[:, 2:] * [fx, fy] + [cx, cy]
    # Scale and crop follow from the focal lengths; the crop is central.
    scale = np.array([k[0, 0] / fx, k[1, 1] / fy])
    offset = (np.array([width, height]) - scale * [camera.width, camera.height]) / 2
    centres = (np.stack([u, v], -1).reshape(-1, 2) + 0.5 - offset) / scale
    worst["pixel"] = max(worst["pixel"], np.abs(seen - centres).max())

for point in binary.points3D.values():
    for element in point.track.elements:
        image = binary.images[element.image_id]
        seen = image.project_point(point.xyz)
        worst["observation"] = max(worst["observation"], np.abs(seen - image.points2D[element.point2D_idx].xy).max())

print(f"{binary.num_images()} images, {binary.num_points3D()} points, mean track {binary.compute_mean_track_length():.2f}")
print(", ".join(f"{name} {value:.2e}" for name, value in worst.items()))
assert worst["text and binary"] < 1e-9 and worst["centre"] < 1e-9
assert worst["observation"] < 1e-6
assert worst["pixel"] < 0.5
