//! A growing cache against a list.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use candle_core::{DType, Device, IndexOp, Tensor};
use periplus_cache::{Error, GrowingRows};
use proptest::prelude::*;

const HEADS: usize = 2;

/// Rows whose keys are their number and whose values are the number's negative.
fn qkv(numbers: &[f32]) -> Tensor {
    let values = numbers.iter().flat_map(|&n| [[0.5; HEADS], [n; HEADS], [-n; HEADS]]).flatten().collect::<Vec<_>>();
    Tensor::from_vec(values, (numbers.len(), 3, HEADS, 1), &Device::Cpu).unwrap()
}

fn visible(rows: &GrowingRows) -> Vec<f32> {
    let table = rows.table();
    assert!(table.special().is_empty());
    if table.last_rows() == 0 {
        assert!(table.frames().is_empty());
        return vec![];
    }
    assert_eq!(table.frames(), [0]);
    let page = rows.pools().unwrap().frames.i(0).unwrap().narrow(1, 0, table.last_rows()).unwrap();
    let page = page.to_dtype(DType::F32).unwrap();
    let [keys, values] = [0, 1].map(|half| page.i(half).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
    for (pair, opposite) in keys.chunks(HEADS).zip(values.chunks(HEADS)) {
        assert_eq!(pair, [pair[0]; HEADS]);
        assert_eq!(opposite, [-pair[0]; HEADS]);
    }
    keys.into_iter().step_by(HEADS).collect()
}

proptest! {
    #[test]
    fn rows_are_those_kept_and_the_new_ones(
        dtype in prop::sample::select(vec![DType::F32, DType::BF16, DType::F16]),
        appends in prop::collection::vec((0..4_usize, 0..6_u8), 1..60),
    ) {
        let mut rows = GrowingRows::new(HEADS, 1, dtype, &Device::Cpu).unwrap();
        let mut kept: Vec<f32> = vec![];
        let mut next = 0;
        for (count, then) in appends {
            let new: Vec<f32> = (next..next + count).map(|number| number as f32).collect();
            next += count;
            rows.append(kept.len(), &qkv(&new)).unwrap();
            let seen = [kept.as_slice(), &new].concat();
            prop_assert_eq!(visible(&rows), seen.as_slice());
            match then {
                0 => kept.clear(),
                1 | 2 => {}
                _ => kept = seen,
            }
            // Twice what was ever needed at most.
            prop_assert!(rows.bytes() <= 2 * next * 2 * HEADS * dtype.size_in_bytes());

            let mut copy = GrowingRows::new(HEADS, 1, dtype, &Device::Cpu).unwrap();
            copy.restore(rows.rows(kept.len()).unwrap().as_ref()).unwrap();
            prop_assert_eq!(visible(&copy), kept.as_slice());
        }
    }
}

#[test]
fn a_failed_append_changes_nothing() {
    let mut rows = GrowingRows::new(HEADS, 1, DType::F32, &Device::Cpu).unwrap();
    assert!(matches!(rows.pools(), Err(Error::Empty)));
    rows.append(0, &qkv(&[1.0, 2.0])).unwrap();
    assert!(matches!(rows.append(3, &qkv(&[3.0])), Err(Error::NoSuchRows { kept: 3, written: 2 })));

    let wide = Tensor::zeros((1, 3, HEADS, 2), DType::F32, &Device::Cpu).unwrap();
    assert!(matches!(rows.append(2, &wide), Err(Error::Shape { .. })));
    let flat = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    assert!(matches!(rows.append(2, &flat), Err(Error::Tensor(_))));
    let integers = Tensor::zeros((3, 3, HEADS, 1), DType::U8, &Device::Cpu).unwrap();
    assert!(matches!(rows.append(2, &integers), Err(Error::Tensor(_))));
    assert_eq!(visible(&rows), [1.0, 2.0]);

    rows.append(2, &qkv(&[3.0])).unwrap();
    assert_eq!(visible(&rows), [1.0, 2.0, 3.0]);
    assert!(matches!(rows.rows(4), Err(Error::NoSuchRows { kept: 4, written: 3 })));
    assert!(matches!(rows.restore(Some(&wide)), Err(Error::Snapshot(_))));
    assert_eq!(visible(&rows), [1.0, 2.0, 3.0]);
}

#[test]
fn impossible_rows_are_refused() {
    assert!(matches!(GrowingRows::new(0, 1, DType::F32, &Device::Cpu), Err(Error::Zero { .. })));
    assert!(matches!(GrowingRows::new(1, 0, DType::F32, &Device::Cpu), Err(Error::Zero { .. })));
    assert!(matches!(GrowingRows::new(1, 1, DType::U32, &Device::Cpu), Err(Error::UnsupportedDType { .. })));
}
