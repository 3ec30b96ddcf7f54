//! Where the time goes: the library's tracing spans, added up by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use periplus::Device;
use periplus::device::Event;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Metadata, Subscriber};

use crate::failure::Failure;

/// Time that a device spent in each kind of span since the last [`StageTimes::take`].
///
/// Spans of one name are added up; a span's time includes that of the spans within it. This is all that `bench` needs
/// of a subscriber, so it is one of its own.
#[derive(Clone)]
pub(crate) struct StageTimes {
    device: Device,
    spans: Arc<Mutex<Spans>>,
}

#[derive(Default)]
struct Spans {
    last_id: u64,
    open: HashMap<u64, (&'static str, Option<Event>)>,
    /// Begin and end. A card says how far apart they were only once it has come there.
    closed: Vec<(&'static str, Event, Event)>,
}

impl StageTimes {
    /// Runs `work` with this thread's spans being measured.
    pub(crate) fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        with_default(self.clone(), work)
    }

    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), spans: Arc::default() }
    }

    /// The times so far, by name of the span; starts over.
    pub(crate) fn take(&self) -> Result<HashMap<&'static str, Duration>, Failure> {
        let mut times = HashMap::new();
        for (name, begin, end) in std::mem::take(&mut self.spans().closed) {
            *times.entry(name).or_default() += end.elapsed_since(&begin)?;
        }
        Ok(times)
    }

    fn spans(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for StageTimes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.spans();
        spans.last_id += 1;
        let id = spans.last_id;
        spans.open.insert(id, (span.metadata().name(), None));
        Id::from_u64(id)
    }

    fn enter(&self, id: &Id) {
        if let Some((_, entered)) = self.spans().open.get_mut(&id.into_u64()) {
            *entered = Event::record(&self.device).ok();
        }
    }

    fn exit(&self, id: &Id) {
        let mut spans = self.spans();
        let Some((name, entered)) = spans.open.get_mut(&id.into_u64()) else { return };
        if let (name, Some(entered), Ok(left)) = (*name, entered.take(), Event::record(&self.device)) {
            spans.closed.push((name, entered, left));
        }
    }

    fn try_close(&self, id: Id) -> bool {
        self.spans().open.remove(&id.into_u64()).is_some()
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_spans_of_one_name_and_counts_inner_time_in_outer_ones() {
        let stages = StageTimes::new(&Device::Cpu);
        let pause = Duration::from_millis(5);
        stages.measure(|| {
            for _ in 0..2 {
                let _outer = tracing::trace_span!("outer").entered();
                let _inner = tracing::trace_span!("inner").entered();
                std::thread::sleep(pause);
            }
        });
        let times = stages.take().unwrap();
        assert!(times["inner"] >= 2 * pause && times["outer"] >= times["inner"]);
        assert_eq!(times.len(), 2);
        assert!(stages.take().unwrap().is_empty(), "taking the times starts over");
    }
}
