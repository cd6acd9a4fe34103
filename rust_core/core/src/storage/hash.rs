//! Hashes of what is stored. They find; the bytes themselves decide.

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

/// The hash of some bytes.
pub(crate) fn fingerprint(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

/// Words that are hashed at once: what a turn says fits, and one call on a buffer costs less than a hasher that is fed.
const BLOCK: usize = 256;

/// Messages whose hashes are hashed at once.
const MESSAGES: usize = 32;

/// The hash of a list of numbers.
pub(crate) fn fingerprint_words(words: &[u32]) -> u128 {
    let mut block = [[0u8; 4]; BLOCK];
    if words.len() <= BLOCK {
        return xxh3_128(fill(&mut block, words));
    }
    let mut hasher = Xxh3::new();
    for part in words.chunks(BLOCK) {
        hasher.update(fill(&mut block, part));
    }
    hasher.digest128()
}

/// Numbers as bytes, little-endian on every machine.
fn fill<'b>(block: &'b mut [[u8; 4]; BLOCK], words: &[u32]) -> &'b [u8] {
    for (slot, word) in block.iter_mut().zip(words) {
        *slot = word.to_le_bytes();
    }
    block[..words.len()].as_flattened()
}

/// The hash of some bytes, joined.
pub(crate) fn fingerprint_joined<'p>(parts: impl Iterator<Item = &'p [u8]>) -> u128 {
    let mut hasher = Xxh3::new();
    parts.for_each(|part| hasher.update(part));
    hasher.digest128()
}

/// The hash of a list of hashes: a context's, from its messages'.
pub(crate) fn fingerprint_list(list: impl Iterator<Item = u128>) -> u128 {
    let mut list = list.map(u128::to_le_bytes).peekable();
    let mut block = [[0u8; 16]; MESSAGES];
    let count = block.iter_mut().zip(&mut list).map(|(slot, hash)| *slot = hash).count();
    let block = block[..count].as_flattened();
    if list.peek().is_none() {
        return xxh3_128(block);
    }
    let mut hasher = Xxh3::new();
    hasher.update(block);
    list.for_each(|hash| hasher.update(&hash));
    hasher.digest128()
}

/// The half of a hash that a table of 64-bit hashes wants; either half of a good hash will do.
#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
pub(crate) const fn half(hash: u128) -> u64 {
    hash as u64
}

/// A 64-bit hash of a few words, for tables that verify.
pub(crate) fn mix(words: [u32; 6]) -> u64 {
    let mut bytes = [0; 24];
    for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::{MESSAGES, fingerprint, fingerprint_joined, fingerprint_list};

    #[test]
    fn what_is_hashed_in_parts_has_the_hash_of_the_whole() {
        for count in [0, 1, MESSAGES - 1, MESSAGES, MESSAGES + 1, 5 * MESSAGES] {
            let hashes: Vec<u128> = (0u128..).map(|number| number << 77 | number).take(count).collect();
            let bytes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
            assert_eq!(fingerprint_list(hashes.into_iter()), fingerprint(&bytes), "{count} hashes");
            assert_eq!(fingerprint_joined(bytes.chunks(7)), fingerprint(&bytes), "{count} hashes in pieces of 7 bytes");
        }
    }
}
