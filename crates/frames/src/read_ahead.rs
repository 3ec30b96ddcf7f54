//! Items made in threads, ahead of their consumer and in order.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

/// The name of the threads that read and decode. A panic there becomes the error of its frame; a program may keep it off the terminal.
pub const READ_AHEAD_THREAD: &str = "read-ahead";

/// Takes jobs from a source one after the other, and makes an item of each in worker threads. Yields the items in the order of their
/// jobs. At most `capacity` items are in the making or wait for the consumer.
///
/// Dropping it ends the threads, each after the item in its hands. It does not wait for them, since the source may wait for long.
pub(crate) struct ReadAhead<J, T> {
    shared: Arc<Shared<J, T>>,
}

/// Gives one job after the other.
type Jobs<J> = Box<dyn FnMut() -> Option<J> + Send>;

struct Shared<J, T> {
    /// `None` when it has ended. A worker that waits for its next job holds the lock.
    source: Mutex<Option<Jobs<J>>>,
    queue: Mutex<Queue<T>>,
    /// Signals the workers that there is room, or that the consumer is gone.
    room: Condvar,
    /// Signals the consumer that an item is ready, or that there are no more.
    ready: Condvar,
    capacity: usize,
}

struct Queue<T> {
    /// The number of the item that the consumer gets next.
    next: usize,
    /// The items from `next` on whose jobs have been taken; `None` while in the making.
    items: VecDeque<Option<T>>,
    /// Workers with room for an item that have no job for it yet.
    reserved: usize,
    /// The source has no more jobs.
    ended: bool,
    /// The consumer is gone.
    closed: bool,
}

impl<J: Send + 'static, T: Send + 'static> ReadAhead<J, T> {
    /// Starts up to `threads` threads; fewer if the system gives fewer. Neither `source` nor `make` may panic.
    ///
    /// # Errors
    /// If the system gives none.
    pub(crate) fn start(
        threads: usize,
        capacity: usize,
        source: impl FnMut() -> Option<J> + Send + 'static,
        make: impl Fn(J) -> T + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let queue = Queue { next: 0, items: VecDeque::new(), reserved: 0, ended: false, closed: false };
        let shared = Arc::new(Shared {
            source: Mutex::new(Some(Box::new(source))),
            queue: Mutex::new(queue),
            room: Condvar::new(),
            ready: Condvar::new(),
            capacity,
        });
        let read_ahead = Self { shared };
        let make = Arc::new(make);
        for started in 0..threads {
            let (shared, make) = (Arc::clone(&read_ahead.shared), Arc::clone(&make));
            match thread::Builder::new().name(READ_AHEAD_THREAD.into()).spawn(move || shared.work(&*make)) {
                Ok(_) => {}
                Err(error) if started == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(read_ahead)
    }

    /// Waits until `next` would return at once, at most for `timeout`. Whether it would.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let queue = self.shared.lock();
        let waited = self.shared.ready.wait_timeout_while(queue, timeout, |queue| !queue.is_ready());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_ready()
    }
}

impl<J, T> Shared<J, T> {
    fn work(&self, make: &impl Fn(J) -> T) {
        while let Some((number, job)) = self.take() {
            let item = make(job);
            let mut queue = self.lock();
            let place = number - queue.next; // the consumer does not pass over an item in the making, so next <= number
            queue.items[place] = Some(item);
            if place == 0 {
                self.ready.notify_all();
            }
        }
    }

    /// The next job and its number, once there is room for its item; `None` when there are no more.
    fn take(&self) -> Option<(usize, J)> {
        let full = |queue: &mut Queue<T>| !queue.closed && queue.items.len() + queue.reserved >= self.capacity;
        self.room.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner).reserved += 1;
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let job = if self.lock().closed { None } else { source.as_mut().and_then(|source| source()) };
        let mut queue = self.lock();
        queue.reserved -= 1;
        if let Some(job) = job.filter(|_| !queue.closed) {
            queue.items.push_back(None);
            return Some((queue.next + queue.items.len() - 1, job));
        }
        queue.ended = true;
        *source = None;
        self.ready.notify_all();
        None
    }

    /// Nothing in this file panics while it holds the lock, so that a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Queue<T> {
    fn is_ready(&self) -> bool {
        match self.items.front() {
            Some(first) => first.is_some(),
            None => self.ended,
        }
    }
}

impl<J, T> Iterator for ReadAhead<J, T> {
    type Item = T;

    fn next(&mut self) -> Option<Self::Item> {
        let shared = &*self.shared;
        let waited = shared.ready.wait_while(shared.lock(), |queue| !queue.is_ready());
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        let item = queue.items.pop_front().flatten()?;
        queue.next += 1;
        shared.room.notify_one();
        Some(item)
    }
}

impl<J, T> Drop for ReadAhead<J, T> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.room.notify_all();
        // The source ends here unless a worker waits for its next job. Then it ends with that worker.
        match self.shared.source.try_lock() {
            Ok(mut source) => *source = None,
            Err(TryLockError::Poisoned(poisoned)) => *poisoned.into_inner() = None,
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    /// The numbers below `count` as jobs.
    fn numbers(count: usize) -> impl FnMut() -> Option<usize> + Send + 'static {
        let mut numbers = 0..count;
        move || numbers.next()
    }

    #[test]
    fn keeps_the_order() {
        // Items take longer the smaller their number is within a group, so that later ones are done first.
        let slow_first = |number: usize| {
            thread::sleep(Duration::from_micros(300 * (7 - number as u64 % 8)));
            number
        };
        for threads in [1, 3, 8] {
            let items: Vec<usize> = ReadAhead::start(threads, 8, numbers(100), slow_first).unwrap().collect();
            assert_eq!(items, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn nothing_to_do() {
        let mut none = ReadAhead::start(4, 4, numbers(0), |number| number).unwrap();
        assert!(none.next().is_none() && none.next().is_none());
    }

    /// Counts itself out.
    struct Item(Arc<AtomicUsize>);

    impl Drop for Item {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn is_never_further_ahead_than_its_capacity() {
        let alive = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let make = {
            let (alive, most) = (Arc::clone(&alive), Arc::clone(&most));
            move |_| {
                most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                Item(Arc::clone(&alive))
            }
        };
        let items = ReadAhead::start(4, 6, numbers(1000), make).unwrap();
        let mut count = 0;
        for (number, item) in items.enumerate() {
            // The workers run into their bound now and then.
            if number % 50 < 5 {
                thread::sleep(Duration::from_micros(200));
            }
            drop(item);
            count += 1;
        }
        let most = most.load(Ordering::SeqCst);
        // One more is in the consumer's hands.
        assert!((2..=7).contains(&most), "{most} alive at once");
        assert_eq!((count, alive.load(Ordering::SeqCst)), (1000, 0));
    }

    /// Waits for what other threads bring about.
    fn soon(done: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        while !done() && started.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(1));
        }
        done()
    }

    #[test]
    fn dropping_ends_the_threads() {
        for taken in [0, 1, 20] {
            let witness = Arc::new(());
            let make = {
                let witness = Arc::clone(&witness);
                move |_| Arc::clone(&witness)
            };
            let mut items = ReadAhead::start(4, 8, numbers(usize::MAX), make).unwrap();
            assert_eq!(items.by_ref().take(taken).count(), taken);
            drop(items);
            assert!(soon(|| Arc::strong_count(&witness) == 1), "a thread or an item is left");
        }
    }

    #[test]
    fn a_source_that_waits_delays_nobody() {
        let witness = Arc::new(());
        let (camera, jobs) = mpsc::channel();
        let source = {
            let witness = Arc::clone(&witness);
            move || jobs.recv().ok().map(|number| number * Arc::strong_count(&witness).min(1))
        };
        let mut items = ReadAhead::start(3, 4, source, |number: usize| number).unwrap();
        assert!(!items.wait(Duration::from_millis(20)), "nothing has come yet");
        camera.send(7).unwrap();
        assert!(items.wait(Duration::from_secs(20)));
        assert_eq!(items.next(), Some(7));
        let started = Instant::now();
        drop(items);
        assert!(started.elapsed() < Duration::from_secs(10));
        // The worker that waits ends with the next job.
        camera.send(8).unwrap();
        assert!(soon(|| Arc::strong_count(&witness) == 1), "the source is left");
    }

    #[test]
    fn the_end_of_a_source_ends_a_wait() {
        let (camera, jobs) = mpsc::channel::<usize>();
        let mut items = ReadAhead::start(2, 4, move || jobs.recv().ok(), |number| number).unwrap();
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(camera);
        });
        assert_eq!(items.next(), None);
        assert!(items.wait(Duration::ZERO));
        ends.join().unwrap();
    }
}
