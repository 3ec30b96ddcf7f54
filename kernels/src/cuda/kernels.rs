//! The table of CUDA kernels: the C functions of `kernels/cuda/*.h`, where every argument is explained.
//!
//! These files change when an operation is added:
//!
//! 1. `cuda/NAME.cu` has the kernel and its C function, `cuda/operations.h` the declaration.
//! 2. One entry of `kernels!` below declares the function and makes a launcher of it.
//! 3. `src/NAME.rs` has the public function, which checks shapes, and the Candle op, which calls `cpu::NAME` (`src/cpu/NAME.rs`)
//!    and the launcher. Operands that may belong to another CUDA stream are declared to `operand::reading`.
//! 4. `tests/gpu.rs` compares both.
//!
//! An operation with many arguments takes them as a struct: an entry of `arguments!`, and its fields in
//! `cuda/layouts.cu`, which a test compares. (Bindings are not generated: bindgen would need libclang on the machine of
//! every user.)

use super::{Memory, launched, stream};
use candle_core::Result;
use candle_core::cuda_backend::CudaDevice;
use std::ffi::{c_char, c_int, c_void};

/// `DType` of `dtype.h`.
pub(crate) const F32: c_int = 0;
pub(crate) const F16: c_int = 1;
pub(crate) const BF16: c_int = 2;

/// `cudaStream_t`.
pub(crate) type Stream = *mut c_void;

/// `cudaErrorMemoryAllocation`.
pub(crate) const OUT_OF_MEMORY: c_int = 2;

/// An argument of a launcher, and its type in C.
trait Argument {
    type C;
    fn to_c(self) -> Self::C;
}

impl Argument for Memory {
    type C = *mut c_void;
    fn to_c(self) -> Self::C {
        self.pointer_mut()
    }
}

impl<T> Argument for &T {
    type C = *const T;
    fn to_c(self) -> Self::C {
        std::ptr::from_ref(self)
    }
}

macro_rules! plain_arguments {
    ($($kind:ty)*) => {
        $(impl Argument for $kind {
            type C = Self;
            fn to_c(self) -> Self {
                self
            }
        })*
    };
}
plain_arguments!(c_int u32 u64 i64 f32);

/// Declares C functions and, under the same names, functions that launch them in the CUDA stream of a device.
macro_rules! kernels {
    ($($(#[$attribute:meta])* $name:ident = $symbol:literal ($($argument:ident: $kind:ty),* $(,)?);)*) => {
        mod c {
            use super::*;
            unsafe extern "C" {
                $(#[link_name = $symbol]
                pub(super) fn $name($($argument: <$kind as Argument>::C,)* stream: Stream) -> c_int;)*
            }
        }
        $($(#[$attribute])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name(device: &CudaDevice, $($argument: $kind),*) -> Result<()> {
            let stream = stream(device)?;
            // SAFETY: operations check the shapes of their operands against each other, and `cuda::memory` that each
            // lies within its storage. Storages of this stream are freed in its order, so after this kernel. Those of
            // other streams are held until it has run (`cuda::foreign`).
            launched(stringify!($name), unsafe { c::$name($($argument.to_c(),)* stream) })
        })*
    };
}

kernels! {
    layer_norm = "periplus_layer_norm"(
        y: Memory, dtype: c_int, x: Memory, weight: Memory, bias: Memory, rows: u64, channels: u32, eps: f32,
    );
    norm_rotate = "periplus_norm_rotate"(operation: &NormRotate);
    /// `keys`: where the first key is written.
    append_rows = "periplus_append_rows"(
        keys: Memory, value_offset: i64, qkv: Memory, size: u32, tokens: u32, width: u32,
    );
    patches = "periplus_patches"(
        y: Memory, dtype: c_int, x: Memory, scale: Memory, shift: Memory, frames: u32, rows: u32, columns: u32, patch: u32,
    );
    join_channels = "periplus_join_channels"(
        y: Memory, a: Memory, b: Memory, rows: u64, a_channels: u32, b_channels: u32,
    );
    modulate = "periplus_modulate"(
        y: Memory, x: Memory, normed: Memory, modulation: Memory, rows: u64, channels: u32,
    );
    relu = "periplus_relu"(x: Memory, dtype: c_int, rows: u64, channels: u32, first: u32);
    bilinear = "periplus_bilinear"(operation: &Bilinear);
    depth_to_space = "periplus_depth_to_space"(
        y: Memory, x: Memory, size: u32, frames: u32, height: u32, width: u32, k: u32, channels: u32,
    );
    add_plane = "periplus_add_plane"(
        x: Memory, dtype: c_int, u: Memory, v: Memory, frames: u32, height: u32, width: u32, channels: u32,
    );
    predict_pixels = "periplus_predict_pixels"(
        y: Memory, x: Memory, dtype: c_int, weight: Memory, bias: Memory, pixels: u64, channels: u32, outputs: u32,
        activation: c_int,
    );
    gemm = "periplus_gemm"(gemm: &Gemm);
    paged_attention = "periplus_paged_attention"(attention: &PagedAttention);
}

/// Declares structs with C layout, and the list of their field offsets for the test below.
macro_rules! arguments {
    ($($name:ident { $($field:ident: $kind:ty,)* })*) => {
        $(#[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $field: $kind,)*
        })*

        /// The size of each struct, then the offset of each of its fields.
        #[cfg(test)]
        const LAYOUTS: &[(&str, &str, usize)] = &[
            $((stringify!($name), "size", size_of::<$name>()),
            $((stringify!($name), stringify!($field), std::mem::offset_of!($name, $field)),)*)*
        ];
    };
}

arguments! {
    PagePool {
        keys: *const c_void,
        value_offset: i64,
        row_stride: i64,
        page_stride: i64,
        pages: u32,
    }
    PagedAttention {
        queries: *const c_void,
        query_stride: i64,
        group_stride: i64,
        output: *mut c_void,
        frames: PagePool,
        special: PagePool,
        table: *const u32,
        frame_pages: u32,
        special_pages: u32,
        last_rows: u32,
        batch: u32,
        tokens: u32,
        heads: u32,
        head_dim: u32,
        page_size: u32,
        scale: f32,
        dtype: c_int,
        block_queries: u32,
        whole: u32,
        splits: u32,
        workspace: *mut f32,
    }
    Gemm {
        x: *const c_void,
        weight: *const c_void,
        bias: *const f32,
        y: *mut c_void,
        frames: u32,
        height: u32,
        width: u32,
        inputs: u32,
        outputs: u32,
        kernel: u32,
        stride: u32,
        padding: u32,
        dtype: c_int,
        output_dtype: c_int,
        activation: c_int,
        add: u32,
    }
    NormRotate {
        qkv: *mut c_void,
        norms: [*const f32; 4],
        cosines: *const f32,
        sines: *const f32,
        times: *const f32,
        time_pairs: u32,
        pairing: c_int,
        keys: *mut c_void,
        value_offset: i64,
        tokens: u32,
        period: u32,
        heads: u32,
        head_dim: u32,
        eps: f32,
        dtype: c_int,
    }
    Bilinear {
        y: *mut c_void,
        x: *const c_void,
        frames: u32,
        height: u32,
        width: u32,
        x_height: u32,
        x_width: u32,
        channels: u32,
        dtype: c_int,
        add: u32,
    }
}

unsafe extern "C" {
    pub(crate) fn cudaGetLastError() -> c_int;
    pub(crate) fn cudaGetErrorString(error: c_int) -> *const c_char;

    #[link_name = "periplus_paged_attention_plan"]
    pub(crate) fn paged_attention_plan(attention: *mut PagedAttention, multiprocessors: u32);
    #[link_name = "periplus_paged_attention_workspace"]
    pub(crate) fn paged_attention_workspace(attention: *const PagedAttention) -> u64;
    #[cfg(test)]
    #[link_name = "periplus_layouts"]
    fn layouts(index: u64) -> u64;
}

/// Kernels for compute capability 9.0 only.
#[cfg(periplus_hopper)]
pub(crate) mod hopper {
    use super::{Argument, CudaDevice, Gemm, PagedAttention, Result, Stream, c_int, launched, stream};

    kernels! {
        gemm = "periplus_gemm_hopper"(gemm: &Gemm, plan: u32);
        paged_attention = "periplus_paged_attention_hopper"(attention: &PagedAttention);
    }

    unsafe extern "C" {
        #[link_name = "periplus_paged_attention_hopper_plan"]
        pub(crate) fn paged_attention_plan(attention: *mut PagedAttention, multiprocessors: u32);
        #[link_name = "periplus_gemm_hopper_fits"]
        pub(crate) fn gemm_fits(gemm: *const Gemm) -> c_int;
        #[link_name = "periplus_gemm_hopper_plan"]
        pub(crate) fn gemm_plan(gemm: *const Gemm, multiprocessors: u32) -> u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_same_layout_in_c() {
        // SAFETY: the function reads a table and checks the index.
        let in_c = |index: usize| unsafe { layouts(index as u64) };
        for (index, (name, field, offset)) in LAYOUTS.iter().enumerate() {
            assert_eq!(in_c(index), *offset as u64, "{name} {field}");
        }
        assert_eq!(in_c(LAYOUTS.len()), u64::MAX, "a field is missing here");
    }
}
