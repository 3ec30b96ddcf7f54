//! Work done ahead of its consumer.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

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
            let worker = thread::Builder::new().name("read-ahead".into()).spawn(move || shared.work(&*load));
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
