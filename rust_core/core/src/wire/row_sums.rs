//! Checksums of rows of a run file: CRC-32 of a row's values as an array in `MessagePack`.

/// The checksum of rows, each continued from those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSum(u32);

impl RowSum {
    /// A row of so many values, behind rows of this checksum; 0 where there are none.
    #[must_use]
    pub fn row(before: u32, values: usize) -> Self {
        let mut sum = Self(!before);
        let [.., high, low] = length(values).to_be_bytes();
        match values {
            0..=15 => sum.put(&[0x90 | low]),
            16..=0xffff => sum.put(&[0xdc, high, low]),
            _ => sum.put_long(0xdd, values),
        }
        sum
    }

    /// The row has no value here.
    pub fn null(&mut self) {
        self.put(&[0xc0]);
    }

    /// The row has a whole number here.
    pub fn whole(&mut self, value: i64) {
        let [.., b4, b5, b6, b7] = value.to_be_bytes();
        match value {
            -32..=0x7f => self.put(&[b7]),
            0x80..=0xff => self.put(&[0xcc, b7]),
            0x100..=0xffff => self.put(&[0xcd, b6, b7]),
            0x1_0000..=0xffff_ffff => self.put(&[0xce, b4, b5, b6, b7]),
            0x1_0000_0000.. => self.put_marked(0xcf, value.to_be_bytes()),
            -128..=-33 => self.put(&[0xd0, b7]),
            -0x8000..=-129 => self.put(&[0xd1, b6, b7]),
            -0x8000_0000..=-0x8001 => self.put(&[0xd2, b4, b5, b6, b7]),
            _ => self.put_marked(0xd3, value.to_be_bytes()),
        }
    }

    /// The row has whole numbers here.
    pub fn wholes<const N: usize>(&mut self, values: [i64; N]) {
        for value in values {
            self.whole(value);
        }
    }

    /// The row has a number with a fraction here.
    pub fn real(&mut self, value: f64) {
        self.put_marked(0xcb, value.to_be_bytes());
    }

    /// The row has a text here.
    pub fn text(&mut self, text: &str) {
        let [.., high, low] = length(text.len()).to_be_bytes();
        match text.len() {
            0..=31 => self.put(&[0xa0 | low]),
            32..=0xff => self.put(&[0xd9, low]),
            0x100..=0xffff => self.put(&[0xda, high, low]),
            long => self.put_long(0xdb, long),
        }
        self.put(text.as_bytes());
    }

    /// The row has bytes here.
    pub fn blob(&mut self, bytes: &[u8]) {
        let [.., high, low] = length(bytes.len()).to_be_bytes();
        match bytes.len() {
            0..=0xff => self.put(&[0xc4, low]),
            0x100..=0xffff => self.put(&[0xc5, high, low]),
            long => self.put_long(0xc6, long),
        }
        self.put(bytes);
    }

    /// The checksum of the rows so far.
    #[must_use]
    pub const fn sum(self) -> u32 {
        !self.0
    }

    fn put_long(&mut self, kind: u8, len: usize) {
        self.put(&[kind]);
        self.put(&length(len).to_be_bytes());
    }

    fn put_marked(&mut self, kind: u8, bytes: [u8; 8]) {
        self.put(&[kind]);
        self.put(&bytes);
    }

    fn put(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for &[b0, b1, b2, b3, b4, b5, b6, b7] in words {
            let [c0, c1, c2, c3] = self.0.to_le_bytes();
            let places = [b0 ^ c0, b1 ^ c1, b2 ^ c2, b3 ^ c3, b4, b5, b6, b7];
            self.0 = places.iter().rev().zip(&TABLES).fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)]);
        }
        for &byte in rest {
            self.0 = (self.0 >> 8) ^ TABLES[0][usize::from(self.0.to_le_bytes()[0] ^ byte)];
        }
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// What a byte adds to the checksum when so many bytes follow it.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut follow) = (byte, 0);
        while follow < 8 {
            let mut bit = 0;
            while bit < 8 {
                sum = if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 };
                bit += 1;
            }
            tables[follow][byte as usize] = sum;
            follow += 1;
        }
        byte += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib_over_message_pack() {
        let mut sum = RowSum(!0);
        sum.put(b"123456789");
        assert_eq!(sum.sum(), 0xcbf4_3926);
        let (bytes, mut whole) = ((0..=255).collect::<Vec<u8>>(), RowSum(!7));
        whole.put(&bytes);
        let mut parts = RowSum(!7);
        bytes.chunks(3).for_each(|part| parts.put(part));
        assert_eq!(whole, parts);
    }
}
