//! Work done ahead of its consumer.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The name of the threads that decode. A panic there becomes the error of its frame; a program may keep it off the terminal.
pub const READ_AHEAD_THREAD: &str = "read-ahead";

/// Yields `load(0)`, `load(1)`, ... `load(count - 1)` in order, computed in worker threads that are never more than
/// `capacity` items ahead of the consumer: at most that many are in the making or waiting. A panic of `load` becomes
/// the `Err` of its item. Dropping it ends the threads as soon as the items in the making are done.
pub(crate) struct ReadAhead<T> {
    shared: Arc<Shared<T>>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    /// Signals the workers that there is room, or that nobody wants more.
    room: Condvar,
    /// Signals the consumer that an item is ready.
    ready: Condvar,
    count: usize,
    capacity: usize,
}

struct Queue<T> {
    /// The number of the item that the consumer gets next.
    next: usize,
    /// The items from `next` on that a worker has taken on; `None` while in the making.
    items: VecDeque<Option<thread::Result<T>>>,
    closed: bool,
}

impl<T: Send + 'static> ReadAhead<T> {
    /// Starts up to `threads` threads; fewer where the system gives fewer.
    ///
    /// # Errors
    /// If the system gives none.
    pub(crate) fn start(
        count: usize,
        threads: usize,
        capacity: usize,
        load: impl Fn(usize) -> T + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let queue = Mutex::new(Queue { next: 0, items: VecDeque::with_capacity(capacity), closed: false });
        let shared = Arc::new(Shared { queue, room: Condvar::new(), ready: Condvar::new(), count, capacity });
        let load = Arc::new(load);
        let mut read_ahead = Self { shared, workers: Vec::new() };
        for _ in 0..threads.min(count) {
            let (shared, load) = (Arc::clone(&read_ahead.shared), Arc::clone(&load));
            let worker = thread::Builder::new().name(READ_AHEAD_THREAD.into()).spawn(move || shared.work(&*load));
            match worker {
                Ok(worker) => read_ahead.workers.push(worker),
                Err(error) if read_ahead.workers.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(read_ahead)
    }
}

impl<T> Shared<T> {
    fn work(&self, load: &impl Fn(usize) -> T) {
        while let Some(number) = self.take_on() {
            let item = catch_unwind(AssertUnwindSafe(|| load(number)));
            let mut queue = self.lock();
            let place = number - queue.next; // an item in the making is not passed over, so next <= number
            queue.items[place] = Some(item);
            if place == 0 {
                self.ready.notify_one();
            }
        }
    }

    /// The number of the next item to make, once there is room for it; `None` when there are no more.
    fn take_on(&self) -> Option<usize> {
        let full = |queue: &mut Queue<T>| !queue.closed && queue.items.len() >= self.capacity;
        let mut queue = self.room.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        let number = queue.next + queue.items.len();
        if queue.closed || number >= self.count {
            return None;
        }
        queue.items.push_back(None);
        Some(number)
    }

    /// Nothing in this file panics while it holds the lock, so that a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Iterator for ReadAhead<T> {
    type Item = thread::Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        let shared = &*self.shared;
        let unfinished =
            |queue: &mut Queue<T>| queue.next < shared.count && !matches!(queue.items.front(), Some(Some(_)));
        let mut queue = shared.ready.wait_while(shared.lock(), unfinished).unwrap_or_else(PoisonError::into_inner);
        let item = queue.items.pop_front().flatten()?;
        queue.next += 1;
        shared.room.notify_one();
        Some(item)
    }
}

impl<T> Drop for ReadAhead<T> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.room.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // work() does not panic
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn keeps_the_order() {
        // Items take longer the smaller their number is within a group, so that later ones are done first.
        let slow_first = |number: usize| {
            thread::sleep(Duration::from_micros(300 * (7 - number as u64 % 8)));
            number
        };
        for threads in [1, 3, 8] {
            let items: Vec<usize> =
                ReadAhead::start(100, threads, 8, slow_first).unwrap().map(Result::unwrap).collect();
            assert_eq!(items, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn nothing_to_do() {
        let mut none = ReadAhead::start(0, 4, 4, |number| number).unwrap();
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
        let load = {
            let (alive, most) = (Arc::clone(&alive), Arc::clone(&most));
            move |_| {
                most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                Item(Arc::clone(&alive))
            }
        };
        let items = ReadAhead::start(1000, 4, 6, load).unwrap();
        for (number, item) in items.enumerate() {
            // The workers run into their bound now and then.
            if number % 50 < 5 {
                thread::sleep(Duration::from_micros(200));
            }
            drop(item);
        }
        let most = most.load(Ordering::SeqCst);
        // One more is in the consumer's hands.
        assert!((2..=7).contains(&most), "{most} alive at once");
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn dropping_ends_the_threads() {
        for taken in [0, 1, 20] {
            let witness = Arc::new(());
            let load = {
                let witness = Arc::clone(&witness);
                move |_| Arc::clone(&witness)
            };
            let mut items = ReadAhead::start(usize::MAX, 4, 8, load).unwrap();
            assert_eq!(items.by_ref().take(taken).count(), taken);
            drop(items);
            assert_eq!(Arc::strong_count(&witness), 1, "a thread or an item is left");
        }
    }

    #[test]
    fn a_panic_is_the_error_of_its_item() {
        let load = |number| if number % 3 == 1 { panic!("number {number}") } else { number };
        let items: Vec<_> = ReadAhead::start(20, 2, 4, load).unwrap().collect();
        assert_eq!(items.len(), 20);
        for (number, item) in items.into_iter().enumerate() {
            match item {
                Ok(found) => assert!(found == number && number % 3 != 1),
                Err(panic) => assert_eq!(panic.downcast_ref::<String>(), Some(&format!("number {number}"))),
            }
        }
    }
}
