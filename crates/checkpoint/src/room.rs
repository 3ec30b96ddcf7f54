//! A limit on the memory for what a file describes: names, shapes, offsets.

/// Bytes of memory for every byte of a file. Descriptions of tensors need about two; a hostile file would make a reader take
/// hundreds. With the copy of a header or pickle and the sorted map at the end, a reader stays below ten.
const PER_BYTE: usize = 6;

/// Bytes of memory on top, since small files have fixed costs, too.
const FIXED: usize = 16 << 10;

/// The memory that is left for descriptions. Readers take from it before they allocate.
pub(crate) struct Room(usize);

/// The descriptions in a file are too large for its size.
#[derive(Debug, thiserror::Error)]
#[error("it describes more than a file of its size can hold")]
pub(crate) struct NoRoom;

impl Room {
    /// The room for a checkpoint of so many bytes.
    pub(crate) fn of(bytes: usize) -> Self {
        Self(bytes.saturating_mul(PER_BYTE).saturating_add(FIXED))
    }

    /// Takes so many bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), NoRoom> {
        self.0 = self.0.checked_sub(bytes).ok_or(NoRoom)?;
        Ok(())
    }

    /// Appends to a list. What the list grows by is taken first.
    pub(crate) fn push<T>(&mut self, list: &mut Vec<T>, item: T) -> Result<(), NoRoom> {
        if list.len() == list.capacity() {
            let more = (list.capacity() / 2).max(4);
            self.take(more.saturating_mul(size_of::<T>()))?;
            list.reserve_exact(more);
        }
        list.push(item);
        Ok(())
    }
}
