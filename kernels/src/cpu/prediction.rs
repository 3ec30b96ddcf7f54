//! The last layer of a dense head on the CPU.

use crate::types::ValueActivation;
use rayon::prelude::*;

/// raw `[pixels, n + 1]` -> values `[pixels, n]`, confidences `[pixels]`.
pub(crate) fn predict(values: &mut [f32], confidences: &mut [f32], raw: &[f32], activation: ValueActivation) {
    if confidences.is_empty() {
        return;
    }
    let outputs = raw.len() / confidences.len();
    let n = outputs - 1;
    let value = |raw: f32| match activation {
        ValueActivation::Exp => raw.exp(),
        // `exp_m1`, because exp(x) - 1 loses digits for small x.
        ValueActivation::InverseLog => raw.abs().exp_m1().copysign(raw),
    };
    confidences.par_iter_mut().zip(raw.par_chunks_exact(outputs)).with_min_len(4096).for_each(|(confidence, raw)| {
        *confidence = 1.0 + raw[n].exp();
    });
    if n > 0 {
        values.par_chunks_exact_mut(n).zip(raw.par_chunks_exact(outputs)).with_min_len(4096).for_each(
            |(values, raw)| {
                values.iter_mut().zip(raw).for_each(|(to, raw)| *to = value(*raw));
            },
        );
    }
}

/// How many values are NaN or infinite.
pub(crate) fn not_finite(values: &[f32]) -> f32 {
    values.par_iter().with_min_len(4096).filter(|value| !value.is_finite()).count() as f32
}
