//! Memory of long requests and answers, from one to the next.

/// Most bytes that are kept.
const MOST: usize = 16 << 20;

/// Buffers that nothing reads any more, for the next requests or answers: memory that the system does not have to give
/// again, and that a cache still holds. With each is kept what it has.
#[derive(Debug)]
pub struct BufferPool<K = ()> {
    free: Vec<(Vec<u8>, K)>,
    bytes: usize,
}

impl<K> Default for BufferPool<K> {
    fn default() -> Self {
        Self { free: Vec::new(), bytes: 0 }
    }
}

impl<K> BufferPool<K> {
    /// A buffer with what is wanted, as it is; else an empty one, with room for so many bytes: a new one, or that which came
    /// back last where a new one could not be kept.
    pub fn take(&mut self, room: usize, wanted: impl Fn(&K) -> bool) -> (Vec<u8>, Option<K>) {
        if let Some(place) = self.free.iter().rposition(|(_, has)| wanted(has)) {
            let (mut buffer, has) = self.free.remove(place);
            self.bytes -= buffer.capacity();
            buffer.reserve(room.saturating_sub(buffer.len()));
            return (buffer, Some(has));
        }
        let last = if room <= MOST - self.bytes { None } else { self.free.pop() };
        let mut buffer = last.map_or_else(Vec::new, |(buffer, _)| buffer);
        self.bytes -= buffer.capacity();
        buffer.clear();
        buffer.reserve(room);
        (buffer, None)
    }

    /// Keep a buffer that nothing reads any more, unless enough are kept.
    pub fn give(&mut self, buffer: Vec<u8>, has: K) {
        if buffer.capacity() <= MOST - self.bytes {
            self.bytes += buffer.capacity();
            self.free.push((buffer, has));
        }
    }

    /// Forget buffers.
    pub fn forget(&mut self, unwanted: impl Fn(&K) -> bool) {
        self.free.retain(|(_, has)| !unwanted(has));
        self.bytes = self.free.iter().map(|(buffer, _)| buffer.capacity()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::{BufferPool, MOST};

    #[test]
    fn a_buffer_with_what_is_wanted_is_taken_as_it_is_and_only_so_many_bytes_are_kept() {
        let mut pool = BufferPool::default();
        let [one, other] = [1, 2].map(|has| (pool.take(1000, |_| false).0, has));
        let place = one.0.as_ptr();
        for (mut buffer, has) in [one, other] {
            buffer.push(has);
            pool.give(buffer, has);
        }
        assert_eq!(pool.bytes, 2000);
        let (again, has) = pool.take(100, |&has| has == 1);
        assert_eq!((again.as_ptr(), &*again, has, pool.bytes), (place, &[1][..], Some(1), 1000));
        pool.forget(|&has| has == 2);
        assert_eq!((pool.bytes, pool.take(100, |_| true)), (0, (Vec::new(), None)));
        for has in 0..4 {
            pool.give(Vec::with_capacity(MOST / 3), has);
            pool.give(Vec::with_capacity(MOST), has);
        }
        assert!(pool.bytes <= MOST && pool.bytes > MOST / 2);
        let (last, has) = pool.take(MOST, |_| false);
        assert!(last.is_empty() && last.capacity() >= MOST && has.is_none() && pool.free.len() == 2);
    }
}
