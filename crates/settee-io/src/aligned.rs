//! Buffers for direct I/O. Their address and capacity are multiples of an alignment that is known only at run
//! time (from `statx(2)`).
//!
//! An [`AlignedBuffer`] owns a vector whose capacity is up to one alignment larger than the buffer's, and
//! exposes only the part that begins at the first aligned address. The vector never grows beyond its
//! capacity, so its memory never moves, even when the buffer does.
//!
//! Invariants:
//! 1. Address and capacity are multiples of the alignment from creation to drop.
//! 2. `start + length <= memory.len()`, and `start + capacity <= memory.capacity()`.
//!
//! Fresh memory isn't zeroed: that would take 40 ns of a cached 4 KiB read, and for a large read as long as
//! the read's own copy. The vector's length is the end of the initialised part, and only bytes that the
//! kernel or the caller wrote are ever visible. Up to `alignment - 1` bytes before the aligned address are
//! zeroed. An aligned allocation of exactly the capacity would have no such bytes, but could become [`Bytes`]
//! only through an owner allocated for each read.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;

use bytes::{Buf, Bytes};

/// Largest alignment, in bytes. The block sizes of devices and file systems are far smaller.
pub const ALIGNMENT_MAX: usize = 1 << 20;

/// Largest offset at which a file can end. A value beyond it is past the end of any file, and an offset up to
/// it can be rounded up to any alignment within the system's range (`off_t`).
pub const OFFSET_MAX: u64 = i64::MAX as u64 & !(ALIGNMENT_MAX as u64 - 1);

/// A power of two between 1 and [`ALIGNMENT_MAX`], in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alignment(usize);

/// The number of bytes is not an alignment: not a power of two, or larger than [`ALIGNMENT_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an alignment of {0} bytes is not a power of two up to {max}", max = ALIGNMENT_MAX)]
pub struct InvalidAlignment(pub usize);

impl Alignment {
    /// One byte: no requirement.
    pub const ONE: Alignment = Alignment(1);

    /// An alignment of `bytes`.
    ///
    /// # Errors
    /// [`InvalidAlignment`] unless `bytes` is a power of two up to [`ALIGNMENT_MAX`].
    pub const fn new(bytes: usize) -> Result<Alignment, InvalidAlignment> {
        if bytes.is_power_of_two() && bytes <= ALIGNMENT_MAX {
            Ok(Alignment(bytes))
        } else {
            Err(InvalidAlignment(bytes))
        }
    }

    /// The alignment in bytes.
    pub const fn bytes(self) -> usize {
        self.0
    }

    /// The largest multiple that is no larger than `offset`.
    pub const fn down(self, offset: u64) -> u64 {
        offset & !(self.0 as u64 - 1)
    }

    /// If it exceeds 64 bits.
    pub const fn up(self, offset: u64) -> u64 {
        offset.checked_next_multiple_of(self.0 as u64).expect("offsets end long before")
    }

    /// Whether `offset` is a multiple.
    pub const fn divides(self, offset: u64) -> bool {
        self.down(offset) == offset
    }
}

/// An owned buffer of fixed capacity whose address and capacity are multiples of an [`Alignment`].
/// Dereferences to its contents, `len()` bytes. Converts to [`Bytes`] without a copy.
pub struct AlignedBuffer {
    /// Its length is the end of the initialised part, including the bytes before `start`.
    memory: Vec<u8>,
    /// Index of the first aligned address in `memory`.
    start: usize,
    length: usize,
    capacity: usize,
    alignment: Alignment,
}

impl AlignedBuffer {
    /// Returns an empty buffer for `capacity` bytes, rounded up to a multiple of `alignment`.
    ///
    /// # Panics
    /// If the size exceeds that of any allocation.
    #[inline]
    pub fn new(capacity: usize, alignment: Alignment) -> AlignedBuffer {
        let capacity = capacity.checked_next_multiple_of(alignment.0).expect("capacity overflow");
        let size = capacity.checked_add(alignment.0 - 1).expect("capacity overflow");
        let mut memory = Vec::<u8>::with_capacity(size);
        let start = memory.as_ptr().addr().wrapping_neg() & (alignment.0 - 1);
        memory.resize(start, 0);
        AlignedBuffer { memory, start, length: 0, capacity, alignment }
    }

    /// Capacity in bytes, including the bytes it holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The alignment of address and capacity.
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Returns the whole capacity, to be filled in place; [`AlignedBuffer::set_len`] then sets the length.
    /// Bytes beyond the current length are zeros or older content. This zeroes fresh memory first;
    /// [`AlignedBuffer::fill`] does not.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        self.initialise(self.capacity);
        &mut self.memory[self.start..self.start + self.capacity]
    }

    /// Replaces the contents by what `read` writes. `read` gets the whole capacity, possibly uninitialised,
    /// and returns the part at its front that it wrote. Returns the number of bytes, which becomes the
    /// buffer's length.
    ///
    /// # Errors
    /// The error of `read`; the buffer is then empty.
    ///
    /// # Panics
    /// If `read` returns memory other than the front of what it was given.
    #[inline]
    pub fn fill<E>(
        &mut self,
        read: impl for<'a> FnOnce(&'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], E>,
    ) -> Result<usize, E> {
        let memory = self.unfilled();
        let start = memory.as_ptr().cast::<u8>();
        let filled = read(memory)?;
        let (is_front, count) = (filled.as_ptr() == start, filled.len());
        assert!(is_front || count == 0, "not the front of the given memory");
        // SAFETY: a reference to `count` bytes from `start` on: they are initialised, and
        // `unfilled` has just given them.
        unsafe { self.assume_filled(count) };
        Ok(count)
    }

    /// Empties the buffer and returns its whole capacity for the kernel to write to.
    /// [`AlignedBuffer::assume_filled`] then sets the length; otherwise the buffer stays empty.
    #[inline]
    pub(crate) fn unfilled(&mut self) -> &mut [MaybeUninit<u8>] {
        self.length = 0;
        self.memory.truncate(self.start);
        &mut self.memory.spare_capacity_mut()[..self.capacity]
    }

    /// Sets the length to the number of bytes that were written to the memory from
    /// [`AlignedBuffer::unfilled`].
    ///
    /// # Safety
    /// The first `count` bytes of that memory are initialised, and nothing writes there any more.
    ///
    /// # Panics
    /// If `count` exceeds the capacity.
    #[inline]
    pub(crate) unsafe fn assume_filled(&mut self, count: usize) {
        assert!(count <= self.capacity, "{count} bytes in a buffer of {}", self.capacity);
        // SAFETY: invariant 2 has the capacity; the bytes before `start` were initialised by
        // `new`, and those behind it are, as the caller promises.
        unsafe { self.memory.set_len(self.start + count) };
        self.length = count;
    }

    /// Sets the length in bytes. Bytes that were never written are zeros.
    ///
    /// # Panics
    /// If `length` exceeds the capacity.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity, "{length} bytes in a buffer of {}", self.capacity);
        self.initialise(length);
        self.length = length;
    }

    /// Appends as many of `bytes` as fit into the capacity, and returns their number.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.capacity - self.length);
        // Within the vector's capacity (invariant 2).
        self.memory.truncate(self.start + self.length);
        self.memory.extend_from_slice(&bytes[..count]);
        self.length += count;
        count
    }

    /// Extends the initialised part with zeros to at least `length` bytes from `start`.
    fn initialise(&mut self, length: usize) {
        let end = self.start + length;
        if self.memory.len() < end {
            self.memory.resize(end, 0);
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<AlignedBuffer> for Bytes {
    #[inline]
    fn from(buffer: AlignedBuffer) -> Bytes {
        let AlignedBuffer { mut memory, start, length, .. } = buffer;
        memory.truncate(start + length);
        // Does not allocate if the vector is full, as after a whole buffered read.
        let mut bytes = Bytes::from(memory);
        bytes.advance(start);
        bytes
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer")
            .field("length", &self.length)
            .field("capacity", &self.capacity)
            .field("alignment", &self.alignment.0)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: after any sequence of operations a buffer is aligned and holds the bytes that were put in.
    //! Method: random steps on a buffer and on a vector of bounded length.

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Append(Vec<u8>),
        Fill(u8, prop::sample::Index),
        FillAnew(u8, prop::sample::Index),
        FailToFill,
        SetLength(prop::sample::Index),
        Clear,
        Move,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..3_000).prop_map(Step::Append),
            (any::<u8>(), any::<prop::sample::Index>()).prop_map(|(byte, at)| Step::Fill(byte, at)),
            (any::<u8>(), any::<prop::sample::Index>()).prop_map(|(byte, at)| Step::FillAnew(byte, at)),
            Just(Step::FailToFill),
            any::<prop::sample::Index>().prop_map(Step::SetLength),
            Just(Step::Clear),
            Just(Step::Move),
        ]
    }

    fn write(memory: &mut [MaybeUninit<u8>], byte: u8) -> &mut [u8] {
        memory.write_copy_of_slice(&vec![byte; memory.len()])
    }

    fn assert_aligned(buffer: &AlignedBuffer, capacity: usize) {
        let alignment = buffer.alignment().bytes();
        assert_eq!(buffer.as_ptr().addr() % alignment, 0, "{buffer:?}");
        assert_eq!(buffer.capacity(), capacity.next_multiple_of(alignment));
        assert!(buffer.len() <= buffer.capacity(), "{buffer:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_buffer_stays_aligned_and_holds_its_contents(
            shift in 0..17u32,
            capacity in 0..20_000usize,
            steps in prop::collection::vec(step(), 0..20),
        ) {
            let mut buffer = AlignedBuffer::new(capacity, Alignment::new(1 << shift).unwrap());
            let mut model = Vec::new();
            assert_aligned(&buffer, capacity);
            for step in steps {
                match step {
                    Step::Append(bytes) => {
                        let free = buffer.capacity() - model.len();
                        let taken = buffer.append(&bytes);
                        prop_assert_eq!(taken, bytes.len().min(free));
                        model.extend_from_slice(&bytes[..taken]);
                    }
                    Step::Fill(byte, at) => {
                        let length = at.index(buffer.capacity() + 1);
                        prop_assert_eq!(buffer.whole_mut().len(), buffer.capacity());
                        buffer.whole_mut()[..length].fill(byte);
                        buffer.set_len(length);
                        model = vec![byte; length];
                    }
                    Step::FillAnew(byte, at) => {
                        let length = at.index(buffer.capacity() + 1);
                        let filled = buffer.fill(|memory| Ok::<_, ()>(write(&mut memory[..length], byte)));
                        prop_assert_eq!(filled, Ok(length));
                        model = vec![byte; length];
                    }
                    Step::FailToFill => {
                        prop_assert_eq!(buffer.fill(|memory| { write(memory, 1); Err(5) }), Err(5));
                        model.clear();
                    }
                    Step::SetLength(at) => {
                        // Truncated, or extended by bytes that no step wrote.
                        let length = at.index(buffer.capacity() + 1);
                        buffer.set_len(length);
                        let same = length.min(model.len());
                        prop_assert_eq!(&buffer[..same], &model[..same]);
                        model = buffer.to_vec();
                    }
                    Step::Clear => {
                        buffer.set_len(0);
                        model.clear();
                    }
                    Step::Move => buffer = *std::hint::black_box(Box::new(buffer)),
                }
                assert_aligned(&buffer, capacity);
                prop_assert_eq!(&buffer[..], &model[..]);
            }
            let address = buffer.as_ptr();
            let bytes = Bytes::from(buffer);
            prop_assert_eq!(bytes.as_ptr(), address, "it was copied");
            prop_assert_eq!(&bytes[..], &model[..]);
        }
    }

    #[test]
    fn an_alignment_is_a_power_of_two_up_to_the_maximum() {
        for bytes in [0, 3, 513, ALIGNMENT_MAX + 1, ALIGNMENT_MAX * 2, usize::MAX] {
            assert_eq!(Alignment::new(bytes), Err(InvalidAlignment(bytes)));
        }
        for bytes in [1, 512, 4096, ALIGNMENT_MAX] {
            assert_eq!(Alignment::new(bytes).unwrap().bytes(), bytes);
        }
        let alignment = Alignment::new(512).unwrap();
        assert_eq!((alignment.down(1_023), alignment.up(1_023)), (512, 1_024));
        assert_eq!((alignment.down(1_024), alignment.up(1_024)), (1_024, 1_024));
    }

    #[test]
    #[should_panic(expected = "513 bytes in a buffer of 512")]
    fn a_length_beyond_the_capacity_is_refused() {
        AlignedBuffer::new(512, Alignment::new(512).unwrap()).set_len(513);
    }

    #[test]
    fn unwritten_memory_reads_as_zeros() {
        let mut buffer = AlignedBuffer::new(1_000, Alignment::new(512).unwrap());
        buffer.append(&[1; 10]);
        buffer.set_len(20);
        assert_eq!(buffer[..], [[1; 10], [0; 10]].concat());
        assert!(buffer.whole_mut()[20..].iter().all(|byte| *byte == 0));
    }

    #[test]
    #[should_panic(expected = "not the front of the given memory")]
    fn fill_refuses_memory_other_than_the_front() {
        let mut buffer = AlignedBuffer::new(512, Alignment::ONE);
        let _ = buffer.fill(|memory| Ok::<_, ()>(write(&mut memory[1..], 1)));
    }
}
