//! Buffers that direct I/O takes: their address and capacity are multiples of an alignment that
//! is known only at run time (from `statx(2)`).
//!
//! An [`AlignedBuffer`] owns a vector whose capacity is up to an alignment larger than the
//! buffer's, and shows only the part that begins at an aligned address. The vector is never made
//! to grow beyond its capacity, so that part never moves, also when the buffer does.
//!
//! Invariants:
//! 1. Address and capacity are multiples of the alignment from creation to drop.
//! 2. `start + length <= memory.len()`, and `start + capacity <= memory.capacity()`.
//!
//! Fresh memory isn't zeroed, which would take 40 ns of a cached read of 4 KiB, and as long as the
//! read's own copy where that is large: the vector's length says how far it is initialised, and
//! only what the system or the caller put there is ever seen. Up to `alignment - 1` bytes before
//! the aligned address are zeroed; an aligned allocation of exactly the capacity would have no
//! such bytes, but could not become [`Bytes`] without an owner, allocated for each read.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;

use bytes::{Buf, Bytes};

/// The largest alignment in bytes. The block sizes of devices and file systems are far below.
pub const ALIGNMENT_MAX: usize = 1 << 20;

/// A power of two between 1 and [`ALIGNMENT_MAX`], in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alignment(usize);

/// What was given for an alignment is not a power of two, or is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an alignment of {0} bytes is not a power of two up to {max}", max = ALIGNMENT_MAX)]
pub struct InvalidAlignment(pub usize);

impl Alignment {
    /// None: that of a byte.
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

    /// The smallest multiple that is no smaller than `offset`.
    ///
    /// # Panics
    /// Where 64 bits don't hold it.
    pub const fn up(self, offset: u64) -> u64 {
        offset.checked_next_multiple_of(self.0 as u64).expect("offsets end long before")
    }

    /// Whether `offset` is a multiple.
    pub const fn divides(self, offset: u64) -> bool {
        self.down(offset) == offset
    }
}

/// An owned buffer of fixed capacity whose address and capacity are multiples of an
/// [`Alignment`]. Dereferences to the bytes it holds, `len()` of them;
/// becomes [`Bytes`] without a copy.
pub struct AlignedBuffer {
    /// Its length is how far it is initialised, from its own front.
    memory: Vec<u8>,
    /// The first aligned address in it.
    start: usize,
    length: usize,
    capacity: usize,
    alignment: Alignment,
}

impl AlignedBuffer {
    /// An empty buffer for `capacity` bytes, rounded up to a multiple of `alignment`.
    ///
    /// # Panics
    /// Where no allocation can be as large.
    #[inline]
    pub fn new(capacity: usize, alignment: Alignment) -> AlignedBuffer {
        let capacity = capacity.checked_next_multiple_of(alignment.0).expect("capacity overflow");
        let size = capacity.checked_add(alignment.0 - 1).expect("capacity overflow");
        let mut memory = Vec::<u8>::with_capacity(size);
        let start = memory.as_ptr().addr().wrapping_neg() & (alignment.0 - 1);
        memory.resize(start, 0);
        AlignedBuffer { memory, start, length: 0, capacity, alignment }
    }

    /// How many bytes there is room for, those it holds included.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What address and capacity are multiples of.
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// All of the capacity, to be filled in place; [`AlignedBuffer::set_len`] says how far it
    /// was. What lies past the length is zeros or older content. Fresh memory is zeroed first,
    /// which [`AlignedBuffer::fill`] saves.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        self.initialise(self.capacity);
        &mut self.memory[self.start..self.start + self.capacity]
    }

    /// Has `read` fill the buffer anew: it gets all of the capacity, of which nothing need be
    /// initialised, and gives the part from the front on that it wrote. Returns how many bytes
    /// that was, and so what the buffer holds.
    ///
    /// # Errors
    /// That of `read`; the buffer is then empty.
    ///
    /// # Panics
    /// Where `read` gives other memory than the front of what it got.
    #[inline]
    pub fn fill<E>(
        &mut self,
        read: impl for<'a> FnOnce(&'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], E>,
    ) -> Result<usize, E> {
        let memory = self.unfilled();
        let start = memory.as_ptr().cast::<u8>();
        let filled = read(memory)?;
        let (is_front, count) = (filled.as_ptr() == start, filled.len());
        assert!(is_front || count == 0, "other memory than was given");
        // SAFETY: a reference to `count` bytes from `start` on: they are initialised, and
        // `unfilled` has just given them.
        unsafe { self.assume_filled(count) };
        Ok(count)
    }

    /// All of the capacity, for the system to write to; the buffer is empty from now on. Ends
    /// with [`AlignedBuffer::assume_filled`], or with the buffer staying empty.
    #[inline]
    pub(crate) fn unfilled(&mut self) -> &mut [MaybeUninit<u8>] {
        self.length = 0;
        self.memory.truncate(self.start);
        &mut self.memory.spare_capacity_mut()[..self.capacity]
    }

    /// Takes what was written to the memory that [`AlignedBuffer::unfilled`] gave.
    ///
    /// # Safety
    /// The first `count` bytes of that memory are initialised, and nobody writes there any more.
    ///
    /// # Panics
    /// Where that is more than the capacity.
    #[inline]
    pub(crate) unsafe fn assume_filled(&mut self, count: usize) {
        assert!(count <= self.capacity, "{count} bytes in a buffer of {}", self.capacity);
        // SAFETY: invariant 2 has the capacity; the bytes before `start` were initialised by
        // `new`, and those behind it are, as the caller promises.
        unsafe { self.memory.set_len(self.start + count) };
        self.length = count;
    }

    /// Sets how many bytes it holds, from the front. What was never put there is zeros.
    ///
    /// # Panics
    /// Where that is more than the capacity.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity, "{length} bytes in a buffer of {}", self.capacity);
        self.initialise(length);
        self.length = length;
    }

    /// Appends as many of `bytes` as there is room for, and returns how many.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.capacity - self.length);
        // Within the vector's capacity (invariant 2).
        self.memory.truncate(self.start + self.length);
        self.memory.extend_from_slice(&bytes[..count]);
        self.length += count;
        count
    }

    /// Puts zeros behind what is initialised, so that `length` bytes are.
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
        // Without an allocation where the vector is full, as that of a whole buffered read is.
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
    //! Goal: whatever is done with a buffer, it stays aligned and holds what was put in.
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
        fn a_buffer_stays_aligned_and_holds_what_was_put_in(
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
                        let room = buffer.capacity() - model.len();
                        let taken = buffer.append(&bytes);
                        prop_assert_eq!(taken, bytes.len().min(room));
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
                        // Cut, or extended by what was never said to be in it.
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
    fn a_length_past_the_capacity_is_refused() {
        AlignedBuffer::new(512, Alignment::new(512).unwrap()).set_len(513);
    }

    #[test]
    fn memory_that_was_never_filled_reads_as_zeros() {
        let mut buffer = AlignedBuffer::new(1_000, Alignment::new(512).unwrap());
        buffer.append(&[1; 10]);
        buffer.set_len(20);
        assert_eq!(buffer[..], [[1; 10], [0; 10]].concat());
        assert!(buffer.whole_mut()[20..].iter().all(|byte| *byte == 0));
    }

    #[test]
    #[should_panic(expected = "other memory than was given")]
    fn other_memory_than_the_buffers_front_is_no_filling() {
        let mut buffer = AlignedBuffer::new(512, Alignment::ONE);
        let _ = buffer.fill(|memory| Ok::<_, ()>(write(&mut memory[1..], 1)));
    }
}
