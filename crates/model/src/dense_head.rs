//! From the four taps to a value and a confidence for every pixel: a DPT head (Ranftl et al. 2021).

use candle_core::{D, Device, Tensor};
use periplus_kernels::conv::{add_plane, conv2d, conv2d_add, depth_to_space, relu_in_place};
use periplus_kernels::linear::Activation;
use periplus_kernels::prediction::{Predicted, ValueActivation, predict};
use periplus_kernels::resample::{bilinear, bilinear_add};
use periplus_kernels::tokens::concat;

use crate::layers::{LayerNorm, Linear, Loader};
use crate::position::Grid;
use crate::{DenseOutput, ModelError};
use periplus_checkpoint::config::Config;

/// A convolution over channels-last pictures.
struct Conv {
    /// `[out, k, k, in]`.
    weight: Tensor,
    bias: Option<Tensor>,
    padding: usize,
}

impl Conv {
    /// A k x k convolution that keeps the size (stride 1).
    fn load(at: &Loader, bias: bool) -> Result<Self, ModelError> {
        let weight = at.host("weight")?.permute((0, 2, 3, 1))?.contiguous()?;
        let bias = if bias { Some(at.small("bias")?) } else { None };
        Ok(Self { padding: weight.dim(1)? / 2, weight: at.store(&weight)?, bias })
    }

    fn forward(&self, x: &Tensor, stride: usize, activation: Activation) -> Result<Tensor, ModelError> {
        Ok(conv2d(x, &self.weight, self.bias.as_ref(), stride, self.padding, activation)?)
    }
}

/// A transposed convolution whose stride is its kernel size k: a linear layer to k x k pixels, then a rearrangement.
struct Upscale {
    linear: Linear,
    k: usize,
}

impl Upscale {
    fn load(at: &Loader) -> Result<Self, ModelError> {
        let weight = at.host("weight")?; // [in, out, k, k]
        let (inputs, outputs, k, _) = weight.dims4()?;
        let weight = weight.permute((2, 3, 1, 0))?.reshape((k * k * outputs, inputs))?;
        let bias = at.host("bias")?.repeat(k * k)?;
        Ok(Self { linear: Linear::from_host(at, &weight, Some(&bias))?, k })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(depth_to_space(&self.linear.forward(x, Activation::Identity)?, self.k)?)
    }
}

/// How a tap becomes a level of the pyramid.
enum Resize {
    Up(Upscale),
    Keep,
    Down(Conv),
}

/// relu(x) + conv2(relu(conv1(relu(x)))): the skip carries relu(x), as the published code's in-place ReLU makes it.
struct ResidualUnit {
    conv1: Conv,
    conv2: Conv,
}

impl ResidualUnit {
    fn load(at: &Loader) -> Result<Self, ModelError> {
        Ok(Self { conv1: Conv::load(&at.pp("conv1"), true)?, conv2: Conv::load(&at.pp("conv2"), true)? })
    }

    /// In place.
    fn forward(&self, x: &Tensor) -> Result<(), ModelError> {
        relu_in_place(x, 0)?;
        let hidden = self.conv1.forward(x, 1, Activation::Relu)?;
        Ok(conv2d_add(x, &hidden, &self.conv2.weight, self.conv2.bias.as_ref(), self.conv2.padding)?)
    }
}

/// Joins a level with the coarser ones.
struct Fusion {
    /// For the incoming level. The coarsest level has no coarser one to join.
    unit1: Option<ResidualUnit>,
    unit2: ResidualUnit,
    out_conv: Linear,
}

/// The head. The point head is another of the same kind.
pub(crate) struct DenseHead {
    norm: LayerNorm,
    projects: Vec<Linear>,
    resize: [Resize; 4],
    level_convs: Vec<Conv>,
    /// Coarsest first: refinenet4 to refinenet1.
    fusions: Vec<Fusion>,
    output_conv1: Conv,
    output_conv2: Conv,
    /// Weight and bias of the last 1 x 1 convolution, float32.
    output: (Tensor, Tensor),
    special: usize,
    patch: usize,
    activation: ValueActivation,
}

impl DenseHead {
    pub(crate) fn load(at: &Loader, config: &Config, activation: ValueActivation) -> Result<Self, ModelError> {
        const EPS: f32 = 1e-5;
        let scratch = at.pp("scratch");
        let resize = at.pp("resize_layers");
        let fusion = |i: usize| {
            let at = scratch.pp(format!("refinenet{i}"));
            let unit1 = if i == 4 { None } else { Some(ResidualUnit::load(&at.pp("resConfUnit1"))?) };
            let unit2 = ResidualUnit::load(&at.pp("resConfUnit2"))?;
            Ok::<_, ModelError>(Fusion { unit1, unit2, out_conv: pointwise(&at.pp("out_conv"))? })
        };
        Ok(Self {
            norm: LayerNorm::load(&at.pp("norm"), EPS)?,
            projects: (0..4).map(|i| pointwise(&at.pp("projects").pp(i))).collect::<Result<_, _>>()?,
            resize: [
                Resize::Up(Upscale::load(&resize.pp(0))?),
                Resize::Up(Upscale::load(&resize.pp(1))?),
                Resize::Keep,
                Resize::Down(Conv::load(&resize.pp(3), true)?),
            ],
            level_convs: (1..=4)
                .map(|i| Conv::load(&scratch.pp(format!("layer{i}_rn")), false))
                .collect::<Result<_, _>>()?,
            fusions: [4, 3, 2, 1].into_iter().map(fusion).collect::<Result<_, _>>()?,
            output_conv1: Conv::load(&scratch.pp("output_conv1"), true)?,
            output_conv2: Conv::load(&scratch.pp("output_conv2.0"), true)?,
            output: {
                let at = scratch.pp("output_conv2.2");
                (at.small("weight")?.flatten_from(1)?, at.small("bias")?)
            },
            special: config.num_special(),
            patch: config.patch_size,
            activation,
        })
    }

    /// taps `[frames, tokens, 2 channels]`, planes as [`DenseHead::planes`] makes them for their grid -> values `[frames,
    /// height, width, n]` and confidences, n = 1 for depth and 3 for points.
    ///
    /// One frame at a time: at full resolution a frame's features are many times its tokens.
    pub(crate) fn forward(&self, taps: &[Tensor], grid: Grid, planes: &Planes) -> Result<DenseOutput, ModelError> {
        let tap = taps.first().ok_or_else(|| candle_core::Error::Msg("the dense head has no taps".into()))?;
        let frames =
            (0..tap.dim(0)?).map(|frame| self.frame(taps, frame, grid, planes)).collect::<Result<Vec<_>, _>>()?;
        let joined = |part: fn(&Predicted) -> &Tensor| {
            concat(&frames.iter().map(|frame| part(frame).clone()).collect::<Vec<_>>(), tap.device())
        };
        Ok(DenseOutput {
            values: joined(|frame| &frame.values)?,
            confidence: joined(|frame| &frame.confidence)?,
            not_finite: joined(|frame| &frame.not_finite)?,
        })
    }

    /// The position embeddings for pictures of `grid`.
    pub(crate) fn planes(&self, grid: Grid, device: &Device) -> Result<Planes, ModelError> {
        let (height, width) = (grid.rows * self.patch, grid.cols * self.patch);
        let aspect = width as f64 / height as f64;
        let levels =
            self.projects.iter().map(|project| Plane::new(grid.rows, grid.cols, aspect, project.outputs()?, device));
        Ok(Planes {
            levels: levels.collect::<Result<_, _>>()?,
            output: Plane::new(height, width, aspect, self.output_conv1.weight.dim(0)?, device)?,
        })
    }

    /// Values and confidences of one frame.
    fn frame(&self, taps: &[Tensor], frame: usize, grid: Grid, planes: &Planes) -> Result<Predicted, ModelError> {
        let (height, width) = (grid.rows * self.patch, grid.cols * self.patch);
        let mut levels = Vec::with_capacity(taps.len());
        for (i, tap) in taps.iter().enumerate() {
            let patches = self.norm.forward(&tap.narrow(0, frame, 1)?.narrow(1, self.special, grid.patches())?)?;
            let x = self.projects[i].forward(&patches, Activation::Identity)?;
            let x = x.reshape((1, grid.rows, grid.cols, x.dim(D::Minus1)?))?;
            planes.levels[i].add_to(&x)?;
            let x = match &self.resize[i] {
                Resize::Up(upscale) => upscale.forward(&x)?,
                Resize::Keep => x,
                Resize::Down(conv) => conv.forward(&x, 2, Activation::Identity)?,
            };
            levels.push(self.level_convs[i].forward(&x, 1, Activation::Identity)?);
        }
        let mut coarser: Option<Tensor> = None;
        for fusion in &self.fusions {
            let Some(x) = levels.pop() else { break };
            if let Some(unit) = &fusion.unit1 {
                unit.forward(&x)?;
            }
            if let Some(coarser) = coarser {
                bilinear_add(&x, &coarser)?;
            }
            fusion.unit2.forward(&x)?;
            // The 1 x 1 convolution and the interpolation that follows commute (both are linear and the weights of the
            // latter sum to 1), and it is cheaper on the coarse side.
            coarser = Some(fusion.out_conv.forward(&x, Activation::Identity)?);
        }
        let Some(x) = coarser else {
            return Err(candle_core::Error::Msg("the dense head was given no taps".into()).into());
        };
        let x = bilinear(&x, 2 * x.dim(1)?, 2 * x.dim(2)?)?;
        let x = bilinear(&self.output_conv1.forward(&x, 1, Activation::Identity)?, height, width)?;
        planes.output.add_to(&x)?;
        let x = self.output_conv2.forward(&x, 1, Activation::Relu)?;
        Ok(predict(&x, &self.output.0, &self.output.1, self.activation)?)
    }
}

/// The position embeddings for one picture size.
pub(crate) struct Planes {
    levels: Vec<Plane>,
    output: Plane,
}

/// 0.1 x the sinusoidal embedding of each pixel's position on the image plane: half of the channels encode x, half y. The
/// plane's diagonal has length 2 for any aspect ratio (width / height).
struct Plane {
    across: Tensor,
    down: Tensor,
}

impl Plane {
    fn new(height: usize, width: usize, aspect: f64, channels: usize, device: &Device) -> Result<Self, ModelError> {
        let diagonal = aspect.hypot(1.0);
        Ok(Self {
            across: waves(width, aspect / diagonal, channels, device)?,
            down: waves(height, 1.0 / diagonal, channels, device)?,
        })
    }

    /// x `[1, h, w, channels]`, in place.
    fn add_to(&self, x: &Tensor) -> Result<(), ModelError> {
        Ok(add_plane(x, &self.across, &self.down)?)
    }
}

/// A 1 x 1 convolution: a linear layer over channels.
fn pointwise(at: &Loader) -> Result<Linear, ModelError> {
    Linear::from_host(at, &at.host("weight")?.flatten_from(1)?, Some(&at.host("bias")?))
}

/// Sines, then cosines, of `count` positions from -reach to reach (pixel centres): `[count, channels / 2]`.
fn waves(count: usize, reach: f64, channels: usize, device: &Device) -> Result<Tensor, ModelError> {
    const BASE: f64 = 100.0;
    const STRENGTH: f64 = 0.1;
    let quarter = channels / 4;
    let mut table = vec![0.0_f32; count * 2 * quarter];
    for (i, row) in table.chunks_mut(2 * quarter).enumerate() {
        let place = reach * (2.0 * i as f64 - (count as f64 - 1.0)) / count as f64;
        for j in 0..quarter {
            let (sin, cos) = (place * BASE.powf(-(j as f64) / (channels as f64 / 4.0))).sin_cos();
            row[j] = (STRENGTH * sin) as f32;
            row[quarter + j] = (STRENGTH * cos) as f32;
        }
    }
    Ok(Tensor::from_vec(table, (count, 2 * quarter), device)?)
}
