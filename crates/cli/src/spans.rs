//! Time per stage: the library's tracing spans, added up by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use periplus::Device;
use periplus::device::Event;
use tracing::Subscriber;
use tracing::span::Id;
use tracing::subscriber::with_default;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::failure::Failure;

/// Time that a device spent in each kind of span since the last [`StageTimes::take`].
///
/// Spans of one name are added up. The time of a span includes the spans within it.
#[derive(Clone)]
pub(crate) struct StageTimes {
    device: Device,
    closed: Arc<Mutex<Vec<Interval>>>,
}

/// A span that was entered and left. A GPU knows the time between two events only when it has reached both.
struct Interval {
    span: &'static str,
    begin: Event,
    end: Event,
}

impl StageTimes {
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), closed: Arc::default() }
    }

    /// Runs `work` and measures the spans of this thread.
    pub(crate) fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        with_default(Registry::default().with(self.clone()), work)
    }

    /// The times so far, by name of the span; starts over.
    pub(crate) fn take(&self) -> Result<HashMap<&'static str, Duration>, Failure> {
        let closed = std::mem::take(&mut *self.closed.lock().unwrap_or_else(PoisonError::into_inner));
        let mut times = HashMap::new();
        for Interval { span, begin, end } in closed {
            *times.entry(span).or_default() += end.elapsed_since(&begin)?;
        }
        Ok(times)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for StageTimes {
    fn on_enter(&self, id: &Id, spans: Context<'_, S>) {
        if let (Some(span), Ok(begin)) = (spans.span(id), Event::record(&self.device)) {
            span.extensions_mut().replace(begin);
        }
    }

    fn on_exit(&self, id: &Id, spans: Context<'_, S>) {
        let Some(span) = spans.span(id) else { return };
        if let (Some(begin), Ok(end)) = (span.extensions_mut().remove(), Event::record(&self.device)) {
            self.closed.lock().unwrap_or_else(PoisonError::into_inner).push(Interval { span: span.name(), begin, end });
        }
    }
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
