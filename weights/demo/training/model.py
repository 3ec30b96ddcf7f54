"""The training forward of the streaming transformer: a whole batch of clips at once.

Same weights (gct.shapes), same numbers as gct.Stream pushing the scale frames and then one frame
at a time; what the stream's cache hides is here the key range of each frame's queries (StreamAttention). `dt`
is the dtype of the matrix products of trunk and dense head (bfloat16 in training, float32 for the
parity check); the residual stream, its norms and the camera head are float32.

No operation waits for the GPU or copies from the host once its tables exist: the whole training step
can be captured as a CUDA graph.
"""

import math

import torch
import torch.nn.functional as F

import gct

BLOCK = ("norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias",
         "ls1.gamma", "norm2.weight", "norm2.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias",
         "ls2.gamma")
QKNORM = ("attn.q_norm.weight", "attn.q_norm.bias", "attn.k_norm.weight", "attn.k_norm.bias")


def init(cfg, seed=0, like=0.8):
    """Fresh float32 weights."""
    g = torch.Generator().manual_seed(seed)
    w = {}
    for name, shape in gct.shapes(cfg).items():
        leaf, x = name.rsplit(".", 1)[-1], torch.randn(shape, generator=g).clamp(-2.5, 2.5)
        if leaf == "gamma":
            x = torch.full(shape, 0.3)
        elif leaf == "weight" and "norm" in name:
            x = torch.ones(shape)
        elif leaf == "bias":
            x = torch.zeros(shape)
            if name.endswith("pose_branch.fc2.bias"):       # added once per iteration: w = 1, fov = 1 rad after four
                x[6:] = 1 / cfg.camera_iterations
            if name.endswith("poseLN_modulation.1.bias"):
                x[2 * (len(x) // 3):] = 0.3
        elif leaf == "weight":
            transposed = "resize_layers.0" in name or "resize_layers.1" in name
            fan = shape[0] if transposed else math.prod(shape[1:])
            gain = 0.6
            if len(shape) == 4 and ("resConfUnit" in name or "output_conv" in name):
                gain = 0.5 if name.endswith("conv2.weight") else 1.3
            if "pose_branch.fc2" in name or "output_conv2.2" in name:
                gain = 0.05
            if "poseLN_modulation" in name:
                gain = 0.3
            x = x * gain / math.sqrt(fan)
        elif leaf == "pos_embed":
            e = cfg.pos_grid
            pos = torch.arange(e, dtype=torch.float64) / e * 16
            om = 30.0 ** (-torch.arange(shape[-1] // 4, dtype=torch.float64) / (shape[-1] / 4))
            a = torch.outer(pos, om)
            a = torch.cat([a.sin(), a.cos()], 1)
            grid = torch.cat([a[:, None].expand(e, e, -1), a[None].expand(e, e, -1)], -1).flatten(0, 1)
            x = torch.cat([torch.zeros(1, shape[-1]), 0.4 * grid.float()])[None]
        elif leaf in ("mask_token", "empty_pose_tokens"):
            x = torch.zeros(shape)
        else:
            x = 0.3 * x
        if "global_blocks" in name and name.endswith("qkv.weight"):      # alike tokens attend to each other from the start
            d = shape[1]
            x[d:2 * d] = like * x[:d] + math.sqrt(1 - like * like) * x[d:2 * d]
        w[name] = x.reshape(shape).contiguous()
    return w


# ------------------------------------------------------------------------------------ layers

def norm(x, w, b, eps):
    return F.layer_norm(x, x.shape[-1:], w, b, eps)


def lin(x, w, b, dt):
    return F.linear(x.to(dt), w.to(dt), b.to(dt))


def rotate(y, cos, sin, pair, dim):
    """y [G,L,heads,64] turned by tables [L,1,64] (sin carries the sign); as shape `pair`, a channel's
    partner is its mirror image along `dim`."""
    other = y.unflatten(-1, pair).flip(dim).flatten(-len(pair))
    return torch.addcmul(y * cos, other, sin)


class StreamAttention(torch.autograd.Function):
    """Attention of a clip under the stream's visibility. q, k, v [B,S*T,heads,64].

    The scale frames see each other; late frame t sees the scale frames, frames t-window+1..t, and the
    first `ns` tokens of the frames between. One unmasked flash call per frame: far cheaper than a mask,
    once a CUDA graph hides the launches.
    """

    @staticmethod
    def plan(frames, scale, window):
        """[(first query frame, end, first window frame)]"""
        return [(0, scale, None)] + [(t, t + 1, max(scale, t - window + 1)) for t in range(scale, frames)]

    @staticmethod
    def ranges(tok, ns, scale, part):
        """Key ranges of the queries: whole slabs [(a,b)], and old frames [(f0,f1)] of which ns tokens are seen."""
        a, b, w = part
        if w is None or w == scale:
            return [(0, b * tok)], None
        return [(0, scale * tok), (w * tok, b * tok)], (scale, w)

    @staticmethod
    def keys(x, tok, ns, slabs, old):
        parts = [x[:, a:b] for a, b in slabs]
        if old:
            parts.append(x.unflatten(1, (-1, tok))[:, old[0]:old[1], :ns].flatten(1, 2))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    @staticmethod
    def flash(q, k, v):
        """-> out [B,L,heads,64] and what the backward needs."""
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if q.is_cuda and q.dtype == torch.bfloat16:
            o, lse, cq, ck, mq, mk, rng, unused, _ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False)
            return o.transpose(1, 2), (o, lse, cq, ck, mq, mk, rng, unused)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2), None

    @staticmethod
    def flash_backward(g, q, k, v, kept):
        if kept is None:
            with torch.enable_grad():
                t = [a.detach().requires_grad_() for a in (q, k, v)]
                return torch.autograd.grad(StreamAttention.flash(*t)[0], t, g)
        q, k, v, g = (t.transpose(1, 2) for t in (q, k, v, g))
        o, lse, cq, ck, mq, mk, rng, unused = kept
        out = torch.ops.aten._scaled_dot_product_flash_attention_backward(g, q, k, v, o, lse, cq, ck, mq, mk, 0.0, False, rng, unused)
        return [t.transpose(1, 2) for t in out]

    @staticmethod
    def forward(ctx, q, k, v, frames, scale, window, ns):
        tok = q.shape[1] // frames
        out, kept = torch.empty_like(q, memory_format=torch.contiguous_format), []
        for part in StreamAttention.plan(frames, scale, window):
            a, b = part[0] * tok, part[1] * tok
            r = StreamAttention.ranges(tok, ns, scale, part)
            o, keep = StreamAttention.flash(q[:, a:b], StreamAttention.keys(k, tok, ns, *r), StreamAttention.keys(v, tok, ns, *r))
            out[:, a:b] = o
            kept.append(keep)
        ctx.save_for_backward(q, k, v)
        ctx.kept, ctx.meta = kept, (frames, scale, window, ns, tok)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        frames, scale, window, ns, tok = ctx.meta
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        dk, dv = (torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in (k, v))
        for part, keep in zip(StreamAttention.plan(frames, scale, window), ctx.kept):
            a, b = part[0] * tok, part[1] * tok
            slabs, old = StreamAttention.ranges(tok, ns, scale, part)
            ks, vs = (StreamAttention.keys(t, tok, ns, slabs, old) for t in (k, v))
            gq, gk, gv = StreamAttention.flash_backward(g[:, a:b], q[:, a:b], ks, vs, keep)
            dq[:, a:b] = gq
            for d, part_grad in ((dk, gk), (dv, gv)):
                at = 0
                for s, e in slabs:
                    d[:, s:e] += part_grad[:, at:at + e - s]
                    at += e - s
                if old:
                    d.unflatten(1, (-1, tok))[:, old[0]:old[1], :ns] += part_grad[:, at:].unflatten(1, (-1, ns))
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


# ------------------------------------------------------------------------------------- model

class Parallel:
    def __init__(self, cfg, dt=torch.float32, device="cpu"):
        self.cfg, self.dt, self.dev, self.tables = cfg, dt, device, {}

    def table(self, key, make):
        if key not in self.tables:
            out = make()
            self.tables[key] = out.to(self.dev) if torch.is_tensor(out) else tuple(o.to(self.dev) for o in out)
        return self.tables[key]

    # ---- constant tables

    def position_matrix(self, rows, cols):
        """[rows*cols, g*g]: the bicubic resampling of the position grid as a matrix."""
        g = self.cfg.pos_grid
        if rows == g and cols == g:
            return torch.eye(g * g)
        eye = torch.eye(g * g).view(g * g, 1, g, g)
        return F.interpolate(eye, (rows, cols), mode="bicubic", antialias=True).flatten(1).T.contiguous()

    def rope_2d(self, rows, cols):
        """Tables [T,1,64]: per half (row, column) 16 channels and the 16 they pair with."""
        ns = self.cfg.num_special
        r = torch.cat([torch.zeros(ns), torch.arange(rows).repeat_interleave(cols) + 1.0])
        c = torch.cat([torch.zeros(ns), torch.arange(cols).repeat(rows) + 1.0])
        om = 1 / 100 ** (torch.arange(0, 32, 2).float() / 32)
        a, b = torch.outer(r, om), torch.outer(c, om)
        cos = torch.cat([a.cos(), a.cos(), b.cos(), b.cos()], 1)
        sin = torch.cat([-a.sin(), a.sin(), -b.sin(), b.sin()], 1)
        return cos[:, None].to(self.dt), sin[:, None].to(self.dt)

    def rope_3d(self, frames, rows, cols):
        """Tables [S*T,1,64]: 10 + 11 + 11 neighbouring pairs for time, row, column."""
        ns, diag = self.cfg.num_special, torch.arange(self.cfg.num_special)
        r = torch.cat([diag, ns + torch.arange(rows).repeat_interleave(cols)]).repeat(frames)
        c = torch.cat([diag, ns + torch.arange(cols).repeat(rows)]).repeat(frames)
        t = torch.arange(frames).repeat_interleave(ns + rows * cols)
        a = torch.cat([torch.outer(p.double(), 10000.0 ** (-torch.arange(0, d, 2).double() / d))
                       for p, d in ((t, 20), (r, 22), (c, 22))], 1)
        cos = torch.stack([a.cos(), a.cos()], -1).flatten(1)
        sin = torch.stack([-a.sin(), a.sin()], -1).flatten(1)
        return cos[:, None].to(self.dt), sin[:, None].to(self.dt)

    def uv(self, ch, h, w, height, width):
        e = gct.Net(self.cfg, {}).uv_embedding(torch.zeros(1, ch, h, w), height, width)[None]
        return e.to(self.dt).contiguous(memory_format=torch.channels_last)

    def camera_mask(self, frames, scale):
        t, s = torch.arange(frames)[:, None], torch.arange(frames)[None]
        see = (s <= t) | (t < scale) & (s < scale)
        return torch.zeros(frames, frames).masked_fill_(~see, float("-inf"))

    # ---- forward

    def block(self, x, bl, eps, attention):
        """Residual [N,C] through a block; attention maps qkv [N,3C] to [N,C]."""
        dt = self.dt
        a = attention(lin(norm(x, bl[0], bl[1], eps), bl[2], bl[3], dt))
        x = x + bl[6].to(dt) * lin(a, bl[4], bl[5], dt)
        h = F.gelu(lin(norm(x, bl[7], bl[8], eps), bl[9], bl[10], dt))
        return x + bl[13].to(dt) * lin(h, bl[11], bl[12], dt)

    def patches(self, w, images):
        """[F,3,H,W] -> patch tokens [F,P,C]."""
        c, p = self.cfg, "aggregator.patch_embed"
        f, _, height, width = images.shape
        ps, rows, cols = c.patch_size, height // c.patch_size, width // c.patch_size
        mean, std = self.table("mean", lambda: (torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)))
        x = ((images - mean) / std).to(self.dt)
        x = x.view(f, 3, rows, ps, cols, ps).permute(0, 2, 4, 1, 3, 5).reshape(f, rows * cols, 3 * ps * ps)
        x = lin(x, w[p + ".patch_embed.proj.weight"].flatten(1), w[p + ".patch_embed.proj.bias"], self.dt)
        e = w[p + ".pos_embed"]
        x = x + self.table(("pos", rows, cols), lambda: self.position_matrix(rows, cols)) @ e[0, 1:]
        head = torch.cat([w[p + ".cls_token"] + e[:, :1], w[p + ".register_tokens"]], 1)
        x = torch.cat([head.expand(f, -1, -1), x], 1)
        length = x.shape[1]
        x = x.flatten(0, 1)

        def attention(y):
            q, k, v = y.view(f, length, 3, c.vit_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(f * length, -1)

        for i in range(c.vit_depth):
            x = self.block(x, [w[f"{p}.blocks.{i}.{n}"] for n in BLOCK], 1e-6, attention)
        x = norm(x, w[p + ".norm.weight"], w[p + ".norm.bias"], 1e-6)
        return x.view(f, length, -1)[:, 1 + c.num_registers:]

    def trunk(self, w, images, scale, window):
        """images [B,S,3,H,W] -> four taps, pairs (frame block, global block) of [B,S,T,C]."""
        c = self.cfg
        b, s, _, height, width = images.shape
        rows, cols = height // c.patch_size, width // c.patch_size
        tok, heads = c.num_special + rows * cols, c.num_heads

        def token(name, first):
            t = w["aggregator." + name][0]
            return torch.cat([t[:1].expand(first, -1, -1), t[1:].expand(s - first, -1, -1)])

        special = torch.cat([token("camera_token", 1), token("register_token", 1), token("scale_token", scale)], 1)
        x = torch.cat([special[None].expand(b, -1, -1, -1).flatten(0, 1), self.patches(w, images.flatten(0, 1))], 1).flatten(0, 1)
        r2 = self.table(("r2", rows, cols), lambda: self.rope_2d(rows, cols))
        r3 = self.table(("r3", s, rows, cols), lambda: self.rope_3d(s, rows, cols))

        def split(y, qk, length, tables, *pair):
            y = y.view(-1, length, 3, heads, 64)
            qk = [t.to(self.dt) for t in qk]
            q, k = norm(y[:, :, 0], qk[0], qk[1], 1e-5), norm(y[:, :, 1], qk[2], qk[3], 1e-5)
            return rotate(q, *tables, *pair), rotate(k, *tables, *pair), y[:, :, 2]

        taps = []
        for i in range(c.depth):
            p = f"aggregator.frame_blocks.{i}."
            qk = [w[p + n] for n in QKNORM]

            def within_frame(y):
                q, k, v = (t.transpose(1, 2) for t in split(y, qk, tok, r2, (2, 2, 16), -2))
                return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b * s * tok, -1)

            x = within = self.block(x, [w[p + n] for n in BLOCK], 1e-5, within_frame)
            p = f"aggregator.global_blocks.{i}."
            qk = [w[p + n] for n in QKNORM]

            def across(y):
                q, k, v = split(y, qk, s * tok, r3, (32, 2), -1)
                return StreamAttention.apply(q, k, v, s, scale, window, c.num_special).view(b * s * tok, -1)

            x = self.block(x, [w[p + n] for n in BLOCK], 1e-5, across)
            if i in c.taps:
                taps.append((within.view(b, s, tok, -1), x.view(b, s, tok, -1)))
        return taps

    def camera(self, w, tokens, scale):
        """tokens [B,S,2C] -> pose encodings after each iteration, a list of [B,S,9] (no relu on the fov)."""
        c, h = self.cfg, "camera_head"
        s = tokens.shape[1]
        mask = self.table(("see", s, scale), lambda: self.camera_mask(s, scale))
        base = norm(tokens.float(), w[h + ".token_norm.weight"], w[h + ".token_norm.bias"], 1e-5)
        plain = F.layer_norm(base, base.shape[-1:], eps=1e-6)
        fl = lambda n, x: F.linear(x, w[f"{h}.{n}.weight"], w[f"{h}.{n}.bias"])
        pose, out = None, []
        for _ in range(c.camera_iterations):
            given = w[h + ".empty_pose_tokens"].expand(*tokens.shape[:2], -1) if pose is None else pose.detach()
            shift, sc, gate = fl("poseLN_modulation.1", F.silu(fl("embed_pose", given))).chunk(3, -1)
            x = base + gate * (plain * (1 + sc) + shift)
            for i in range(c.camera_depth):
                nw, nb, qw, qb, pw, pb, g1, mw, mb, w1, b1, w2, b2, g2 = (w[f"{h}.trunk.{i}.{n}"] for n in BLOCK)
                q, k, v = F.linear(norm(x, nw, nb, 1e-5), qw, qb).unflatten(-1, (3, c.camera_heads, -1)).permute(2, 0, 3, 1, 4)
                a = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask).softmax(-1) @ v
                x = x + g1 * F.linear(a.transpose(1, 2).flatten(2), pw, pb)
                x = x + g2 * F.linear(F.gelu(F.linear(norm(x, mw, mb, 1e-5), w1, b1)), w2, b2)
            y = norm(x, w[h + ".trunk_norm.weight"], w[h + ".trunk_norm.bias"], 1e-5)
            delta = fl("pose_branch.fc2", F.gelu(fl("pose_branch.fc1", y)))
            pose = delta if pose is None else pose + delta
            out.append(pose)
        return out

    def dense(self, w, taps, height, width, h="depth_head"):
        """taps: four [F,T,2C] -> log depth [F,H,W], log(conf - 1) [F,H,W]."""
        c, dt = self.cfg, self.dt
        rows, cols = height // c.patch_size, width // c.patch_size
        W = lambda n: w[f"{h}.{n}"].to(dt)

        def conv(n, x, stride=1, padding=0):
            b = w.get(f"{h}.{n}.bias")
            return F.conv2d(x, W(n + ".weight"), None if b is None else b.to(dt), stride, padding)

        def uv(x):
            key = ("uv", x.shape[1], *x.shape[-2:], height, width)
            return self.table(key, lambda: self.uv(x.shape[1], *x.shape[-2:], height, width))

        levels = []
        for i, t in enumerate(taps):
            x = norm(t[:, c.num_special:], w[h + ".norm.weight"], w[h + ".norm.bias"], 1e-5)
            x = lin(x, w[f"{h}.projects.{i}.weight"].flatten(1), w[f"{h}.projects.{i}.bias"], dt)
            x = x.unflatten(1, (rows, cols)).permute(0, 3, 1, 2)                                # channels last
            x = x + uv(x)
            r = f"resize_layers.{i}"
            if i in (0, 1):
                k = (4, 2)[i]
                ci, co = w[f"{h}.{r}.weight"].shape[:2]
                # kernel = stride: a matrix product per pixel, then the k x k cells are laid out
                m = W(r + ".weight").permute(2, 3, 1, 0).reshape(k * k * co, ci)
                y = F.linear(x.permute(0, 2, 3, 1), m).view(-1, rows, cols, k, k, co).permute(0, 1, 3, 2, 4, 5)
                x = (y.reshape(-1, rows * k, cols * k, co) + W(r + ".bias")).permute(0, 3, 1, 2)
            elif i == 3:
                x = conv(r, x, 2, 1)
            levels.append(conv(f"scratch.layer{i + 1}_rn", x, padding=1))

        def residual(p, x):
            x = F.relu(x)
            return x + conv(p + ".conv2", F.relu(conv(p + ".conv1", x, padding=1)), padding=1)

        x = None
        for i in (4, 3, 2, 1):
            p = f"scratch.refinenet{i}"
            x = levels[3] if x is None else x + residual(p + ".resConfUnit1", levels[i - 1])
            x = residual(p + ".resConfUnit2", x)
            # the 1x1 convolution commutes with the resampling: do it on the small side
            x = conv(p + ".out_conv", x)
            size = levels[i - 2].shape[-2:] if i > 1 else (2 * x.shape[-2], 2 * x.shape[-1])
            x = F.interpolate(x, size, mode="bilinear", align_corners=True)
        x = conv("scratch.output_conv1", x, padding=1)
        x = F.interpolate(x, (rows * c.patch_size, cols * c.patch_size), mode="bilinear", align_corners=True)
        x = x + uv(x)
        x = F.relu(conv("scratch.output_conv2.0", x, padding=1)).float()
        x = F.conv2d(x, w[h + ".scratch.output_conv2.2.weight"], w[h + ".scratch.output_conv2.2.bias"])
        return x[:, 0], x[:, 1]

    def __call__(self, w, images, scale, window, depth_frames=slice(None), patches=(False,) * 4):
        """-> poses (list of [B,S,9]), log depth and log(conf - 1) [B,D,H,W] of depth_frames, and the patch
        tokens [B,S,P,2C] of the taps."""
        height, width = images.shape[-2:]
        taps = self.trunk(w, images, scale, window)
        ns = self.cfg.num_special
        poses = self.camera(w, torch.cat([t[:, :, 0] for t in taps[-1]], -1), scale)
        pick = [torch.cat([t[:, depth_frames] for t in pair], -1).flatten(0, 1) for pair in taps]
        v, conf = self.dense(w, pick, height, width)
        shape = (len(images), -1, height, width)
        return dict(poses=poses, log_depth=v.view(shape), log_conf=conf.view(shape),
                    patches=[torch.cat([t[:, :, ns:] for t in pair], -1) if want else None for pair, want in zip(taps, patches)])
