//! Memory of long requests and answers, from one to the next.

/// Most bytes that are kept.
const MOST: usize = 16 << 20;

/// Buffers that nothing reads any more, for the next requests or answers: memory that the system does not have to give
/// again, and that a cache still holds.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// An empty buffer with room for so many bytes: the one that came back last.
    pub fn take(&mut self, room: usize) -> Vec<u8> {
        let mut buffer = self.free.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer.reserve(room);
        buffer
    }

    /// Keep a buffer that nothing reads any more, unless enough are kept.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= MOST - self.bytes {
            buffer.clear();
            self.bytes += buffer.capacity();
            self.free.push(buffer);
        }
    }

    /// Bytes that are kept.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{BufferPool, MOST};

    #[test]
    fn the_buffer_that_came_back_last_is_taken_and_only_so_many_bytes_are_kept() {
        let mut pool = BufferPool::default();
        let (mut one, mut other) = (pool.take(100), pool.take(1000));
        one.extend_from_slice(b"one");
        other.extend_from_slice(b"other");
        let places = [one.as_ptr(), other.as_ptr()];
        pool.give(one);
        pool.give(other);
        assert_eq!(pool.memory(), 1100);
        let again = [pool.take(7), pool.take(100)];
        assert_eq!((again[0].as_ptr(), again[1].as_ptr()), (places[1], places[0]));
        assert!(again.iter().all(Vec::is_empty) && pool.memory() == 0);
        for _ in 0..4 {
            pool.give(Vec::with_capacity(MOST / 3));
            pool.give(Vec::with_capacity(MOST));
        }
        assert!(pool.memory() <= MOST && pool.memory() > MOST / 2);
        assert!(pool.take(MOST).capacity() >= MOST);
    }
}
