"""Judges a checkpoint on held-out clips, streamed frame by frame through gct.Stream, and makes the demo clip.

    python evaluate.py CHECKPOINT.safetensors --clips 24 --out metrics.json
    python evaluate.py CHECKPOINT.safetensors --demo DIR --picture result.png
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch

import scenes
from model import Parallel, gct

HELD_OUT = 900_000_000          # seeds of the CPU generator; training draws from a GPU generator
SIZE = (168, 224)


def load(path):
    """safetensors -> (Config, float32 weights)."""
    from safetensors import safe_open
    with safe_open(str(path), "pt") as f:
        cfg = gct.Config(**json.loads(f.metadata()["config"]))
        return cfg, {k: f.get_tensor(k).float() for k in f.keys()}


def save(path, cfg, weights, dtype=torch.float16):
    from safetensors.torch import save_file
    save_file({k: v.detach().cpu().to(dtype).contiguous() for k, v in weights.items()}, str(path),
              metadata={"config": cfg.to_json(), "format": "pt"})


def held_out(seed, frames=48, size=SIZE, device="cpu", ss=2, motion=None):
    """One held-out clip without its batch dimension."""
    gen = torch.Generator().manual_seed(HELD_OUT + seed)
    clip = scenes.clips(1, frames, *size, gen, device, ss=ss, chunk=12 if device == "cpu" else None, motion=motion)
    return {k: v[0] for k, v in clip.items()}


# ------------------------------------------------------------------------------------ metrics

def umeyama(a, b, scaled=True):
    """Similarity (s, R, t) with b ~ s R a + t, least squares; a, b [N,3] numpy."""
    ma, mb = a.mean(0), b.mean(0)
    u, d, vt = np.linalg.svd((b - mb).T @ (a - ma) / len(a))
    e = np.eye(3)
    e[2, 2] = np.sign(np.linalg.det(u @ vt))
    r = u @ e @ vt
    var = ((a - ma) ** 2).sum() / len(a)
    s = float((d * np.diag(e)).sum() / var) if scaled and var > 1e-12 else 1.0
    return s, r, mb - s * r @ ma


def ate(pred, true, scaled=True):
    s, r, t = umeyama(pred, true, scaled)
    return float(np.sqrt((((s * pred @ r.T + t) - true) ** 2).sum(1).mean()))


def angles(r):
    """Rotation angles [...] in degrees of matrices [...,3,3]."""
    w = np.stack([r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]], -1)
    return np.degrees(np.arctan2(np.linalg.norm(w, axis=-1), np.trace(r, axis1=-2, axis2=-1) - 1))


def relative_rotation(a, b, gap):
    ra, rb = np.swapaxes(a[:-gap], 1, 2) @ a[gap:], np.swapaxes(b[:-gap], 1, 2) @ b[gap:]
    return float(angles(np.swapaxes(ra, 1, 2) @ rb).mean())


def depth_metrics(pred, true):
    """One scale for the whole clip (median ratio)."""
    s = np.median(true / pred)
    p = pred * s
    r = np.maximum(p / true, true / p)
    return float((np.abs(p - true) / true).mean()), float((r < 1.25).mean()), float(s)


def metrics(pose_enc, depth, clip, height, width):
    """Numbers of one clip; pose_enc [S,9], depth [S,H,W] predicted."""
    c2w, k = gct.camera(pose_enc.double().cpu(), height, width)
    c2w, true = c2w.numpy(), clip["c2w"].double().cpu().numpy()
    z = clip["depth"].double().cpu().numpy()
    pos, rot = c2w[:, :, 3], c2w[:, :, :3]
    tpos, trot = true[:, :, 3], true[:, :, :3]
    path = float(np.linalg.norm(np.diff(tpos, axis=0), axis=1).sum())
    n = len(tpos)
    gap = min(8, n - 1)
    rel, d1, s = depth_metrics(depth.double().cpu().numpy(), z)
    rel0 = np.swapaxes(trot[:1], 1, 2) @ trot
    out = dict(abs_rel=rel, delta1=d1, path=path, turn=float(angles(rel0).max()), ate=ate(pos, tpos),
               ate_depth_scale=ate(pos * s, tpos, False), rot_1=relative_rotation(rot, trot, 1), rot_8=relative_rotation(rot, trot, gap),
               rot_0=float(angles(np.swapaxes(np.swapaxes(rot[:1], 1, 2) @ rot, 1, 2) @ rel0).mean()),
               fov=float(np.degrees((pose_enc[:, 7:].double().cpu().numpy() - clip["fov"].double().cpu().numpy())).__abs__().mean()))
    # baselines: flat depth; a camera that stands still; one that moves straight ahead, evenly
    out["base_abs_rel"], out["base_delta1"], _ = depth_metrics(np.ones_like(z), z)
    still = np.repeat(np.eye(3)[None], n, 0)
    out["base_ate_still"] = float(np.sqrt(((tpos - tpos.mean(0)) ** 2).sum(1).mean()))
    out["base_ate_line"] = ate(np.linspace(0, 1, n)[:, None] * np.array([[0, 0, 1.0]]), tpos)
    out["base_rot_1"], out["base_rot_8"] = relative_rotation(still, trot, 1), relative_rotation(still, trot, gap)
    out["base_rot_0"] = float(angles(rel0).mean())
    out["base_fov"] = float(np.degrees(np.abs(clip["fov"].double().cpu().numpy() - np.array([0.89, 1.13]))).mean())
    for name in ("ate", "ate_depth_scale", "base_ate_still", "base_ate_line"):
        out[name + "_rel"] = out[name] / path
    return out


def summary(rows):
    """Mean and median of every number; trajectories judged relative to the path only where there is one."""
    out = {}
    for k in rows[0]:
        use = [r[k] for r in rows if not k.endswith("_rel") or not (k.startswith(("ate", "base_ate"))) or r["path"] > 0.25]
        if use:
            out[k] = dict(mean=round(float(np.mean(use)), 5), median=round(float(np.median(use)), 5))
    return out


def table(s):
    g = lambda k: f"{s[k]['mean']:.4f} (median {s[k]['median']:.4f})"
    return "\n".join([
        f"depth   AbsRel {g('abs_rel')}   flat {g('base_abs_rel')}",
        f"        delta1 {g('delta1')}   flat {g('base_delta1')}",
        f"ATE/path       {g('ate_rel')}   still {g('base_ate_still_rel')}   line {g('base_ate_line_rel')}   at the depth's scale {g('ate_depth_scale_rel')}",
        f"rotation gap 1 {g('rot_1')}   still {g('base_rot_1')}",
        f"         gap 8 {g('rot_8')}   still {g('base_rot_8')}",
        f"  to frame 0   {g('rot_0')}   still {g('base_rot_0')}",
        f"fov degrees    {g('fov')}   mean {g('base_fov')}",
        f"path metres {g('path')}   turn degrees {g('turn')}"])


@torch.no_grad()
def quick(cfg, weights, count=16, frames=48, size=SIZE, device="cuda", first=0, ss=2, dt=torch.float32):
    """Batch evaluation with the training forward (equal to the stream, see `parity`)."""
    net = Parallel(cfg, dt, device)
    rows = []
    for i in range(first, first + count):
        clip = held_out(i, frames, size, device, ss)
        out = net(weights, clip["images"][None], min(cfg.scale_frames, frames), cfg.window)
        pose = out["poses"][-1][0].float()
        pose = torch.cat([pose[:, :7], pose[:, 7:].relu()], -1)
        rows.append(metrics(pose, out["log_depth"][0].float().exp(), clip, *size))
    return summary(rows)


def parity(cfg, weights, frames=24, size=SIZE):
    """Largest difference between the training forward and gct.Stream, both float32 on the CPU."""
    clip = held_out(1, frames, size, ss=1)
    a = gct.Stream(cfg, weights).run(clip["images"])
    b = Parallel(cfg)(weights, clip["images"][None], cfg.scale_frames, cfg.window)
    pose = b["poses"][-1][0]
    pose = torch.cat([pose[:, :7], pose[:, 7:].relu()], -1)
    return dict(pose=float((pose - a["pose_enc"]).abs().max()),
                depth=float((b["log_depth"][0].exp() / a["depth"] - 1).abs().max()),
                conf=float(((1 + b["log_conf"][0].exp()) / a["depth_conf"] - 1).abs().max()))


# ---------------------------------------------------------------------------------- demo clip

def to_png(image):
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def write_demo(folder, seed, frames=48, size=SIZE):
    from PIL import Image
    folder = Path(folder)
    (folder / "frames").mkdir(parents=True, exist_ok=True)
    (folder / "depth").mkdir(exist_ok=True)
    clip = held_out(seed, frames, size, ss=3)
    for i, im in enumerate(clip["images"]):
        Image.fromarray(to_png(im)).save(folder / "frames" / f"{i:06d}.png", optimize=True)
    r0, t0 = clip["c2w"][0, :, :3], clip["c2w"][0, :, 3]
    rot = r0.T @ clip["c2w"][:, :, :3]
    pos = (clip["c2w"][:, :, 3] - t0) @ r0
    q = gct.quaternion(rot)
    with open(folder / "groundtruth.txt", "w") as f:
        f.write("# timestamp tx ty tz qx qy qz qw   (camera to world, metres; world = camera of frame 0, x right, y down, z forward)\n")
        for i in range(frames):
            f.write(" ".join([f"{i / 30:.6f}", *(f"{v:.6f}" for v in [*pos[i].tolist(), *q[i].tolist()])]) + "\n")
    k = clip["k"]
    with open(folder / "intrinsics.txt", "w") as f:
        f.write(f"{k[0, 0]:.6f} {k[1, 1]:.6f} {k[0, 2]:.6f} {k[1, 2]:.6f}\n")
    for i in range(frames):
        mm = (clip["depth"][i] * 1000).round().numpy().astype(np.uint16)
        Image.fromarray(mm).save(folder / "depth" / f"{i:06d}.png")
    return clip


def read_frames(folder):
    from PIL import Image
    files = sorted((Path(folder) / "frames").glob("*.png"))
    return torch.stack([torch.from_numpy(np.array(Image.open(f).convert("RGB"))).permute(2, 0, 1).float() / 255 for f in files])


def heat(x):
    """[0,1] -> RGB bytes, dark blue to yellow."""
    stops = np.array([[13, 8, 60], [60, 20, 140], [140, 30, 150], [205, 70, 110], [245, 135, 60], [252, 235, 120]], float)
    p = np.clip(x, 0, 1) * (len(stops) - 1)
    i = np.minimum(p.astype(int), len(stops) - 2)
    return (stops[i] + (stops[i + 1] - stops[i]) * (p - i)[..., None]).astype(np.uint8)


def picture(path, images, out, clip, m):
    """Input frames, true and predicted depth, their difference, and the trajectory from above."""
    from PIL import Image, ImageDraw, ImageFont
    n, h, w = clip["depth"].shape
    try:
        font = ImageFont.truetype("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", 13)
    except OSError:
        font = ImageFont.load_default()
    idx = np.linspace(0, n - 1, 5).round().astype(int)
    z, d = clip["depth"].numpy(), out["depth"].numpy()
    s = np.median(z / d)
    d = d * s
    near, far = np.percentile(1 / z, 99.5), np.percentile(1 / z, 0.5)
    show = lambda x: heat((1 / x - far) / (near - far))
    gap, left, top = 4, 96, 22
    W, H = left + 5 * (w + gap), top + 4 * (h + gap)
    plot = 420
    im = Image.new("RGB", (W, H + plot + 40), "white")
    dr = ImageDraw.Draw(im)
    rows = [("input", lambda i: to_png(images[i])), ("true depth", lambda i: show(z[i])), ("predicted", lambda i: show(d[i])),
            ("relative error\n0 .. 50 %", lambda i: heat(np.abs(d[i] - z[i]) / z[i] / 0.5))]
    for r, (name, fn) in enumerate(rows):
        dr.text((6, top + r * (h + gap) + h // 2 - 8), name, fill="black", font=font)
        for c, i in enumerate(idx):
            im.paste(Image.fromarray(fn(i)), (left + c * (w + gap), top + r * (h + gap)))
            if r == 0:
                dr.text((left + c * (w + gap) + 2, 3), f"frame {i}", fill="black", font=font)
    c2w, _ = gct.camera(out["pose_enc"].double(), h, w)
    true = clip["c2w"].double().numpy()
    pos, tpos = c2w[:, :, 3].numpy(), true[:, :, 3]
    sc, rr, tt = umeyama(pos, tpos)
    apos, arot = sc * pos @ rr.T + tt, rr @ c2w[:, :, :3].numpy()
    for k, (title, ax) in enumerate((("from above: x right, z up (metres)", (0, 2)), ("from the side: z right, y up", (2, 1)))):
        x0, y0 = left + k * (plot + 120), H + 30
        both = np.concatenate([apos, tpos])[:, ax]
        flip = np.array([1.0, 1.0 if ax[1] == 2 else -1.0])
        both = both * flip
        mid, half = (both.max(0) + both.min(0)) / 2, max((both.max(0) - both.min(0)).max() / 2 * 1.15, 0.05)
        to = lambda p: (x0 + (p[0] * flip[0] - mid[0] + half) / (2 * half) * plot, y0 + plot - 30 - (p[1] * flip[1] - mid[1] + half) / (2 * half) * (plot - 30))
        dr.rectangle((x0, y0, x0 + plot, y0 + plot - 30), outline="#bbbbbb")
        dr.text((x0, y0 - 18), title, fill="black", font=font)
        for P, R, colour in ((tpos, true[:, :, :3], "#1a7f37"), (apos, arot, "#cc2222")):
            dr.line([to(p[list(ax)]) for p in P], fill=colour, width=2)
            for i in range(0, n, 6):
                a, b = to(P[i][list(ax)]), to((P[i] + R[i][:, 2] * half * 0.15)[list(ax)])
                dr.line([a, b], fill=colour, width=1)
                dr.ellipse((a[0] - 3, a[1] - 3, a[0] + 3, a[1] + 3), fill=colour)
        dr.line([(x0 + 8, y0 + 14), (x0 + 8 + plot / (2 * half) * 0.25, y0 + 14)], fill="black", width=2)
        dr.text((x0 + 8, y0 + 16), "0.25 m", fill="black", font=font)
    dr.text((left, H + plot + 14), f"green: truth   red: predicted, Sim(3) aligned   ATE {100 * m['ate']:.1f} cm over {m['path']:.2f} m ({100 * m['ate_rel']:.1f} %)"
            f"   rotation error over 8 frames {m['rot_8']:.2f} deg   AbsRel {m['abs_rel']:.3f}   delta<1.25 {m['delta1']:.3f}", fill="black", font=font)
    im.save(path, optimize=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("checkpoint")
    a.add_argument("--clips", type=int, default=24)
    a.add_argument("--first", type=int, default=0)
    a.add_argument("--frames", type=int, default=48)
    a.add_argument("--out")
    a.add_argument("--demo")
    a.add_argument("--demo-seed", type=int, default=111)
    a.add_argument("--picture")
    args = a.parse_args()
    cfg, w = load(args.checkpoint)
    half = {k: v.half().float() for k, v in w.items()}
    if args.demo:
        clip = write_demo(args.demo, args.demo_seed, args.frames)
        images = read_frames(args.demo)
        out = gct.Stream(cfg, half).run(images)
        m = metrics(out["pose_enc"], out["depth"], clip, *SIZE)
        print(json.dumps(m, indent=1))
        if args.picture:
            picture(args.picture, images, out, clip, m)
        return
    result = dict(parity=parity(cfg, half))
    print("parity", result["parity"], flush=True)
    for name, weights in (("float32", w), ("float16", half)):
        rows, t0 = [], time.time()
        for i in range(args.first, args.first + args.clips):
            clip = held_out(i, args.frames)
            out = gct.Stream(cfg, weights).run(clip["images"])
            rows.append(metrics(out["pose_enc"], out["depth"], clip, *SIZE))
        result[name] = dict(summary=summary(rows), clips=rows)
        print(f"{name}: {args.clips} clips of {args.frames} frames, {time.time() - t0:.0f} s\n" + table(result[name]["summary"]), flush=True)
        if all(torch.equal(w[k], half[k]) for k in w):
            break
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
