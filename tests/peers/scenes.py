"""Reads nerfstudio, GLB, EXR, NPY, confidence and batch results with other programs and checks them against each other.

    periplus stream FRAMES --out RUN --save npz,kitti,depth,ply,nerfstudio,glb,exr,npy,confidence,batch
    python tests/peers/scenes.py RUN

Needs numpy, pillow, plyfile, trimesh and OpenEXR.
"""

import json
import sys
from pathlib import Path

import numpy as np
import OpenEXR
import trimesh
from PIL import Image
from plyfile import PlyData

run = Path(sys.argv[1])
kitti = np.loadtxt(run / "poses_kitti.txt").reshape(-1, 3, 4)
count = len(kitti)
npz = [np.load(run / f"npz/{i:06}.npz") for i in range(count)]

# nerfstudio: points unprojected from a depth map project to the centres of their pixels in the original picture, as
# nerfstudio projects: OpenGL's camera, pixel centres at half.
scene = json.loads((run / "nerfstudio/transforms.json").read_text())
assert scene["camera_model"] == "OPENCV" and "fl_x" not in scene and len(scene["frames"]) == count
worst = {"nerfstudio pixel": 0.0, "nerfstudio depth": 0.0}
for i, entry in enumerate(scene["frames"]):
    depth, k = npz[i]["depth"].astype(float), npz[i]["intrinsics"].astype(float)
    height, width = depth.shape
    v, u = np.mgrid[0:height, 0:width]
    rays = np.stack([(u - k[0, 2]) / k[0, 0], (v - k[1, 2]) / k[1, 1], np.ones_like(depth)], -1)
    world = (rays * depth[..., None]).reshape(-1, 3) @ kitti[i][:, :3].T + kitti[i][:, 3]
    camera = np.linalg.inv(np.array(entry["transform_matrix"]))
    local = world @ camera[:3, :3].T + camera[:3, 3]
    assert (local[:, 2] < 0).all()
    focal, size = np.array([entry["fl_x"], entry["fl_y"]]), np.array([entry["w"], entry["h"]])
    seen = local[:, :2] * [1, -1] / -local[:, 2:] * focal + [entry["cx"], entry["cy"]]
    scale = np.array([k[0, 0], k[1, 1]]) / focal
    offset = (np.array([width, height]) - scale * size) / 2
    centres = (np.stack([u, v], -1).reshape(-1, 2) + 0.5 - offset) / scale
    worst["nerfstudio pixel"] = max(worst["nerfstudio pixel"], np.abs(seen - centres).max())
    # The depth map covers the picture: its value where a point is seen is the depth of the point.
    png = np.asarray(Image.open(run / "nerfstudio" / entry["depth_file_path"]))
    at = seen * np.array(png.shape[::-1]) / size
    inside = ((at > 0.1) & (at < np.array(png.shape[::-1]) - 0.1)).all(-1)
    column, row = at[inside].astype(int).T
    difference = png[row, column] / 1000 - depth.reshape(-1)[inside]
    worst["nerfstudio depth"] = max(worst["nerfstudio depth"], np.abs(difference).max())
seeds = PlyData.read(run / "nerfstudio" / scene["ply_file_path"])["vertex"]
assert len(seeds) > 0 and {"nx", "ny", "nz"} <= set(seeds.data.dtype.names)

# GLB: the points of the PLY file, half a turn about x, in linear colours.
cloud = PlyData.read(run / "points.ply")["vertex"]
glb = trimesh.load_scene(run / "scene.glb")
shapes = {name.split(".")[0]: glb.geometry[glb.graph[name][1]] for name in glb.graph.nodes_geometry}
points, path = shapes["points"], shapes["trajectory"]
positions = np.stack([cloud[axis] for axis in "xyz"], -1)
turn = glb.graph[next(name for name in glb.graph.nodes_geometry if name.startswith("points"))][0]
assert np.allclose(turn, np.diag([1, -1, -1, 1])), turn
worst["glb point"] = np.abs(np.asarray(points.vertices) - positions).max()
srgb = np.stack([cloud[name] for name in ("red", "green", "blue")], -1) / 255
linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
worst["glb colour"] = np.abs(np.asarray(points.colors)[:, :3] / 255 - linear).max()
assert len(shapes["cameras"].vertices) == 5 * count
worst["glb trajectory"] = np.abs(np.asarray(path.vertices) - kitti[:, :, 3]).max()

# Maps.
depth_scale = json.loads((run / "depth/scale.json").read_text())["scale"]
scale = json.loads((run / "confidence/scale.json").read_text())["scale"]
assert depth_scale == 1000
worst |= {"confidence": 0.0}
for i in range(count):
    exr = OpenEXR.File(str(run / f"exr/{i:06}.exr")).channels()
    depth, confidence = exr["Z"].pixels, exr["confidence"].pixels
    assert depth.dtype == confidence.dtype == np.float32
    npy = np.load(run / f"npy/{i:06}.npy")
    np.testing.assert_array_equal(depth, npy)
    shown = ~np.isnan(npy)
    np.testing.assert_array_equal(npy[shown], npz[i]["depth"][shown])
    np.testing.assert_array_equal(confidence[shown], npz[i]["depth_conf"][shown])
    png = np.asarray(Image.open(run / f"confidence/{i:06}.png")) / scale
    known = shown & (confidence < 65.5)
    worst["confidence"] = max(worst["confidence"], np.abs(png - confidence)[known].max())

# The batch layout, stacked as its loader stacks it.
files = sorted((run / "batch").glob("frame_*.npz"))
frames = [dict(np.load(file, allow_pickle=False)) for file in files]
batch = {key: np.stack([frame[key] for frame in frames]) for key in frames[0]}
batch |= dict(np.load(run / "batch/meta.npz"))
height, width = npz[0]["depth"].shape
assert batch["depth"].shape == (count, height, width, 1) and batch["images"].shape == (count, 3, height, width)
assert batch["is_keyframe"].shape == (1, count) and batch["frame_type"].dtype == np.uint8
poses = np.tile(np.eye(4), (count, 1, 1))
poses[:, :3] = batch["extrinsic"]
worst["batch pose"] = np.abs(np.linalg.inv(poses)[:, :3] - kitti).max()

print(f"{count} frames, {len(cloud)} points; " + ", ".join(f"{name} {value:.2e}" for name, value in worst.items()))
assert worst["nerfstudio pixel"] < 0.5 and worst["nerfstudio depth"] <= 0.00051
assert worst["glb point"] == 0 and worst["glb trajectory"] < 1e-6 and worst["glb colour"] < 0.005
assert worst["confidence"] <= 0.00051 and worst["batch pose"] < 1e-5
