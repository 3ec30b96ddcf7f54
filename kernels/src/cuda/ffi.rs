//! The C interface of `kernels/cuda/*.h`, where every field is explained.

use std::ffi::{c_char, c_int, c_void};

/// `DType` of `dtype.h`.
pub(crate) const F32: c_int = 0;
pub(crate) const F16: c_int = 1;
pub(crate) const BF16: c_int = 2;

/// `cudaStream_t`.
pub(crate) type Stream = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PagePool {
    pub(crate) keys: *const c_void,
    pub(crate) value_offset: i64,
    pub(crate) row_stride: i64,
    pub(crate) page_stride: i64,
    pub(crate) pages: u32,
}

#[repr(C)]
pub(crate) struct PagedAttention {
    pub(crate) queries: *const c_void,
    pub(crate) query_stride: i64,
    pub(crate) group_stride: i64,
    pub(crate) output: *mut c_void,
    pub(crate) frames: PagePool,
    pub(crate) special: PagePool,
    pub(crate) table: *const u32,
    pub(crate) frame_pages: u32,
    pub(crate) special_pages: u32,
    pub(crate) last_rows: u32,
    pub(crate) batch: u32,
    pub(crate) tokens: u32,
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) page_size: u32,
    pub(crate) scale: f32,
    pub(crate) dtype: c_int,
    pub(crate) block_queries: u32,
    pub(crate) whole: u32,
    pub(crate) splits: u32,
    pub(crate) workspace: *mut f32,
}

#[repr(C)]
pub(crate) struct Gemm {
    pub(crate) x: *const c_void,
    pub(crate) weight: *const c_void,
    pub(crate) bias: *const f32,
    pub(crate) y: *mut c_void,
    pub(crate) frames: u32,
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) inputs: u32,
    pub(crate) outputs: u32,
    pub(crate) kernel: u32,
    pub(crate) stride: u32,
    pub(crate) padding: u32,
    pub(crate) dtype: c_int,
    pub(crate) output_dtype: c_int,
    pub(crate) activation: c_int,
    pub(crate) add: u32,
}

#[repr(C)]
pub(crate) struct NormRotate {
    pub(crate) qkv: *mut c_void,
    pub(crate) norms: [*const f32; 4],
    pub(crate) cosines: *const f32,
    pub(crate) sines: *const f32,
    pub(crate) times: *const f32,
    pub(crate) time_pairs: u32,
    pub(crate) pairing: c_int,
    pub(crate) keys: *mut c_void,
    pub(crate) value_offset: i64,
    pub(crate) tokens: u32,
    pub(crate) period: u32,
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) eps: f32,
    pub(crate) dtype: c_int,
}

#[repr(C)]
pub(crate) struct Bilinear {
    pub(crate) y: *mut c_void,
    pub(crate) x: *const c_void,
    pub(crate) frames: u32,
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) x_height: u32,
    pub(crate) x_width: u32,
    pub(crate) channels: u32,
    pub(crate) dtype: c_int,
    pub(crate) add: u32,
}

/// `cudaErrorMemoryAllocation`.
pub(crate) const OUT_OF_MEMORY: c_int = 2;

unsafe extern "C" {
    pub(crate) fn cudaGetLastError() -> c_int;
    pub(crate) fn cudaGetErrorString(error: c_int) -> *const c_char;

    #[link_name = "periplus_paged_attention_plan"]
    pub(crate) fn paged_attention_plan(attention: *mut PagedAttention, multiprocessors: u32);
    #[link_name = "periplus_paged_attention_workspace"]
    pub(crate) fn paged_attention_workspace(attention: *const PagedAttention) -> u64;
    #[link_name = "periplus_paged_attention"]
    pub(crate) fn paged_attention(attention: *const PagedAttention, stream: Stream) -> c_int;
    #[link_name = "periplus_gemm"]
    pub(crate) fn gemm(gemm: *const Gemm, stream: Stream) -> c_int;

    #[cfg(periplus_hopper)]
    #[link_name = "periplus_paged_attention_hopper_plan"]
    pub(crate) fn paged_attention_hopper_plan(attention: *mut PagedAttention, multiprocessors: u32);
    #[cfg(periplus_hopper)]
    #[link_name = "periplus_paged_attention_hopper"]
    pub(crate) fn paged_attention_hopper(attention: *const PagedAttention, stream: Stream) -> c_int;
    #[cfg(periplus_hopper)]
    #[link_name = "periplus_gemm_hopper_fits"]
    pub(crate) fn gemm_hopper_fits(gemm: *const Gemm) -> c_int;
    #[cfg(periplus_hopper)]
    #[link_name = "periplus_gemm_hopper_plan"]
    pub(crate) fn gemm_hopper_plan(gemm: *const Gemm, multiprocessors: u32) -> u32;
    #[cfg(periplus_hopper)]
    #[link_name = "periplus_gemm_hopper"]
    pub(crate) fn gemm_hopper(gemm: *const Gemm, plan: u32, stream: Stream) -> c_int;

    #[cfg(test)]
    #[link_name = "periplus_layouts"]
    fn layouts(number: u64) -> u64;
    #[link_name = "periplus_layer_norm"]
    pub(crate) fn layer_norm(
        y: *mut c_void,
        dtype: c_int,
        x: *const f32,
        weight: *const f32,
        bias: *const f32,
        rows: u64,
        channels: u32,
        eps: f32,
        stream: Stream,
    ) -> c_int;
    #[link_name = "periplus_norm_rotate"]
    pub(crate) fn norm_rotate(operation: *const NormRotate, stream: Stream) -> c_int;
    #[link_name = "periplus_append_rows"]
    pub(crate) fn append_rows(
        keys: *mut c_void,
        value_offset: i64,
        qkv: *const c_void,
        size: u32,
        tokens: u32,
        width: u32,
        stream: Stream,
    ) -> c_int;
    #[link_name = "periplus_patches"]
    pub(crate) fn patches(
        y: *mut c_void,
        dtype: c_int,
        x: *const u8,
        scale: *const f32,
        shift: *const f32,
        frames: u32,
        rows: u32,
        columns: u32,
        patch: u32,
        stream: Stream,
    ) -> c_int;
    #[link_name = "periplus_join_channels"]
    pub(crate) fn join_channels(
        y: *mut u32,
        a: *const u32,
        b: *const u32,
        rows: u64,
        a_channels: u32,
        b_channels: u32,
        stream: Stream,
    ) -> c_int;
    #[link_name = "periplus_modulate"]
    pub(crate) fn modulate(
        y: *mut f32,
        x: *const f32,
        normed: *const f32,
        modulation: *const f32,
        rows: u64,
        channels: u32,
        stream: Stream,
    ) -> c_int;
    #[link_name = "periplus_relu"]
    pub(crate) fn relu(x: *mut c_void, dtype: c_int, rows: u64, channels: u32, first: u32, stream: Stream) -> c_int;
    #[link_name = "periplus_bilinear"]
    pub(crate) fn bilinear(operation: *const Bilinear, stream: Stream) -> c_int;
    #[link_name = "periplus_depth_to_space"]
    pub(crate) fn depth_to_space(
        y: *mut c_void,
        x: *const c_void,
        size: u32,
        frames: u32,
        height: u32,
        width: u32,
        k: u32,
        channels: u32,
        stream: Stream,
    ) -> c_int;
    #[link_name = "periplus_add_plane"]
    pub(crate) fn add_plane(
        x: *mut c_void,
        dtype: c_int,
        u: *const f32,
        v: *const f32,
        frames: u32,
        height: u32,
        width: u32,
        channels: u32,
        stream: Stream,
    ) -> c_int;
    #[link_name = "periplus_predict_pixels"]
    pub(crate) fn predict_pixels(
        y: *mut f32,
        x: *const c_void,
        dtype: c_int,
        weight: *const f32,
        bias: *const f32,
        pixels: u64,
        channels: u32,
        outputs: u32,
        activation: c_int,
        stream: Stream,
    ) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The size of a description, then where its fields lie.
    macro_rules! layout {
        ($kind:ident: $($field:ident)*) => {
            [("size of", stringify!($kind), size_of::<$kind>()), $((stringify!($kind), stringify!($field), offset_of!($kind, $field)),)*]
        };
    }

    #[test]
    fn descriptions_lie_in_memory_as_the_kernels_read_them() {
        let ours = [
            layout!(PagePool: keys value_offset row_stride page_stride pages).to_vec(),
            layout!(PagedAttention: queries query_stride group_stride output frames special table frame_pages special_pages
                last_rows batch tokens heads head_dim page_size scale dtype block_queries whole splits workspace)
            .to_vec(),
            layout!(Gemm: x weight bias y frames height width inputs outputs kernel stride padding dtype output_dtype
                activation add)
            .to_vec(),
            layout!(NormRotate: qkv norms cosines sines times time_pairs pairing keys value_offset tokens period heads
                head_dim eps dtype)
            .to_vec(),
            layout!(Bilinear: y x frames height width x_height x_width channels dtype add).to_vec(),
        ]
        .concat();
        // SAFETY: it reads a table, and no further.
        let theirs = |number: usize| unsafe { layouts(number as u64) };
        for (number, (kind, field, place)) in ours.iter().enumerate() {
            assert_eq!(theirs(number), *place as u64, "{kind} {field}");
        }
        assert_eq!(theirs(ours.len()), u64::MAX, "a field is missing here");
    }
}
