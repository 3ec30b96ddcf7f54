use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const PAGE_SIZE: usize = 7;

fn config(window: usize) -> CacheConfig {
    CacheConfig { window, retention: Retention::All, pin_scale_frames: true, special_tokens: 6 }
}

fn any_config() -> impl Strategy<Value = CacheConfig> {
    let retention = prop::sample::select(vec![Retention::All, Retention::Camera, Retention::None]);
    (1..6_usize, retention, any::<bool>(), 0..=PAGE_SIZE).prop_map(
        |(window, retention, pin_scale_frames, special_tokens)| CacheConfig {
            window,
            retention,
            pin_scale_frames,
            special_tokens,
        },
    )
}

/// Every page ever used is pinned, in the window, or free, and a plan takes pages that are none of the first two.
fn assert_in_one_place(pages: &Pages, plan: Option<&Plan>) {
    let cached = || pages.pinned.iter().chain(&pages.window).copied();
    let all: Vec<u32> = cached().chain(pages.free.iter().copied()).collect();
    assert_eq!(all.len(), pages.ever_used);
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), (0..pages.ever_used as u32).collect());

    if let Some(plan) = plan {
        let taken: BTreeSet<u32> = plan.pages.iter().copied().collect();
        assert_eq!(taken.len(), plan.pages.len());
        assert!(cached().all(|page| !taken.contains(&page)));
        assert!(taken.iter().all(|&page| (page as usize) < plan.frame_pages()));
        assert!(plan.frame_pages() <= pages.most_frame_pages(plan.kind));
        assert!(plan.table.special().len() <= plan.special_pages());
    }
}

proptest! {
    #[test]
    fn every_page_is_in_one_place(
        config in any_config(),
        scale_frames in 1..6_usize,
        passes in prop::collection::vec((any::<bool>(), any::<bool>(), 0..40_u8), 0..100),
    ) {
        let mut pages = Pages::new(config).unwrap();
        for (keyframe, keep, reset) in passes {
            let pass = match (pages.frames, keyframe) {
                (0, _) => PassKind::Scale(scale_frames),
                (_, true) => PassKind::Keyframe,
                (_, false) => PassKind::Candidate,
            };
            let before = pages.clone();
            let plan = pages.plan(pass, PAGE_SIZE).unwrap();
            assert_in_one_place(&pages, Some(&plan));
            prop_assert_eq!(&pages, &before);
            if keep {
                pages.commit(plan);
                prop_assert_eq!(pages.frames, before.frames + if before.frames == 0 { scale_frames } else { 1 });
            }
            assert_in_one_place(&pages, None);
            prop_assert!(pages.window.len() <= config.window);
            if reset == 0 {
                pages.reset();
                assert_in_one_place(&pages, None);
            }
        }
    }
}

#[test]
fn a_long_clip_costs_no_more_per_frame_than_a_short_one() {
    let mut pages = Pages::new(config(64)).unwrap();
    pages.commit(pages.plan(PassKind::Scale(8), 1005).unwrap());
    for frame in 8..20_000 {
        if frame % 3 == 0 {
            // Dropped.
            pages.plan(PassKind::Candidate, 1005).unwrap();
        }
        let pass = if frame % 2 == 0 { PassKind::Keyframe } else { PassKind::Candidate };
        let plan = pages.plan(pass, 1005).unwrap();
        // Six rows straddle two pages at most.
        assert!(plan.retained.len() <= 2);
        pages.commit(plan);
    }
    assert_eq!(pages.frames, 20_000);
    assert_eq!(pages.frame_pages_in_use(), 8 + 64);
    assert_eq!(pages.ever_used, 8 + 64 + 1);
    assert_eq!(pages.free.len(), 1);
    assert_eq!(pages.special_rows, 6 * (20_000 - 8 - 64));
    assert_eq!(pages.special_pages_in_use(), (6_usize * (20_000 - 8 - 64)).div_ceil(1005));
}

#[test]
fn a_window_without_end_is_a_number_like_any_other() {
    let mut pages = Pages::new(config(usize::MAX)).unwrap();
    pages.commit(pages.plan(PassKind::Scale(2), PAGE_SIZE).unwrap());
    for _ in 0..100 {
        pages.commit(pages.plan(PassKind::Keyframe, PAGE_SIZE).unwrap());
    }
    assert_eq!(pages.frame_pages_in_use(), 102);
    assert_eq!(pages.special_rows, 0);
}

#[test]
fn what_cannot_be_numbered_is_an_error() {
    let mut pages = Pages::new(config(1)).unwrap();
    assert!(matches!(pages.plan(PassKind::Scale(usize::MAX), PAGE_SIZE), Err(Error::TooLong)));

    pages.commit(pages.plan(PassKind::Scale(1), PAGE_SIZE).unwrap());
    pages.commit(pages.plan(PassKind::Keyframe, PAGE_SIZE).unwrap());
    pages.special_rows = usize::MAX - 5;
    let before = pages.clone();
    assert!(matches!(pages.plan(PassKind::Keyframe, PAGE_SIZE), Err(Error::TooLong)));
    assert_eq!(pages, before);
}

#[test]
fn passes_out_of_order_are_refused() {
    assert!(matches!(Pages::new(config(0)), Err(Error::Zero { what: "window" })));

    let mut pages = Pages::new(config(2)).unwrap();
    assert!(matches!(pages.plan(PassKind::Keyframe, PAGE_SIZE), Err(Error::ScalePassMissing)));
    assert!(matches!(pages.plan(PassKind::Candidate, PAGE_SIZE), Err(Error::ScalePassMissing)));
    assert!(matches!(pages.plan(PassKind::Scale(0), PAGE_SIZE), Err(Error::Zero { .. })));
    assert!(matches!(pages.plan(PassKind::Scale(1), 0), Err(Error::Zero { what: "page size" })));
    assert!(matches!(
        pages.plan(PassKind::Scale(1), 5),
        Err(Error::NoRoomForSpecialTokens { page_size: 5, special_tokens: 6 })
    ));

    pages.commit(pages.plan(PassKind::Scale(1), PAGE_SIZE).unwrap());
    assert!(matches!(pages.plan(PassKind::Scale(1), PAGE_SIZE), Err(Error::ScalePassNotFirst { frames: 1 })));
    assert!(matches!(pages.plan(PassKind::Keyframe, 8), Err(Error::PageSize { expected: PAGE_SIZE, got: 8 })));

    // A clip of another size may follow.
    pages.reset();
    assert!(pages.plan(PassKind::Scale(1), 8).is_ok());
}

#[test]
fn the_leaving_frame_keeps_its_page_until_the_commit() {
    let mut pages = Pages::new(config(2)).unwrap();
    pages.commit(pages.plan(PassKind::Scale(1), PAGE_SIZE).unwrap());
    for _ in 0..2 {
        pages.commit(pages.plan(PassKind::Keyframe, PAGE_SIZE).unwrap());
    }
    let plan = pages.plan(PassKind::Keyframe, PAGE_SIZE).unwrap();
    assert_eq!(plan.pages, [3]);
    assert_eq!(plan.table, PageTable::new(vec![0, 2, 3], vec![0], 6));
    pages.commit(plan);

    // The page of the frame that left is the next one used; twelve rows straddle two pages of seven.
    let plan = pages.plan(PassKind::Keyframe, PAGE_SIZE).unwrap();
    assert_eq!(plan.pages, [1]);
    assert_eq!(plan.table, PageTable::new(vec![0, 3, 1], vec![0, 1], 5));
    let rows = |page, row| Rows { page, row };
    assert_eq!(
        plan.retained,
        [
            Retained { source: rows(2, 0), target: rows(0, 6), count: 1 },
            Retained { source: rows(2, 1), target: rows(1, 0), count: 5 },
        ]
    );

    // A candidate pushes nothing out.
    let plan = pages.plan(PassKind::Candidate, PAGE_SIZE).unwrap();
    assert_eq!(plan.table, PageTable::new(vec![0, 2, 3, 1], vec![0], 6));
}
