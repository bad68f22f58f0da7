//! A list of items, each with a mark, that grows by segments. Growing copies nothing and leaves
//! little memory unused.
//!
//! A single vector doubles its capacity: it holds both copies for a while and may be half empty
//! afterwards. A mark inside an item would take eight bytes because of alignment.

use std::ops::{Index, IndexMut};

/// Items in one segment. With slots of 64 bytes a segment has 2 KiB, a size class of common
/// allocators.
const SEGMENT_LEN: usize = 32;

#[derive(Debug)]
pub(super) struct SegmentedVec<T>(Vec<Segment<T>>);

#[derive(Debug)]
struct Segment<T> {
    items: Vec<T>,
    /// One bit for each item.
    marks: u32,
}

impl<T> Default for SegmentedVec<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> SegmentedVec<T> {
    pub(super) fn len(&self) -> usize {
        // All segments except the last are full, and none is empty.
        self.0.last().map_or(0, |last| (self.0.len() - 1) * SEGMENT_LEN + last.items.len())
    }

    /// Adds an item without a mark.
    pub(super) fn push(&mut self, item: T) {
        if self.0.last().is_none_or(|last| last.items.len() == SEGMENT_LEN) {
            self.0.push(Segment { items: Vec::with_capacity(SEGMENT_LEN), marks: 0 });
        }
        self.0.last_mut().expect("a segment that is not full").items.push(item);
    }

    pub(super) fn is_marked(&self, position: usize) -> bool {
        self.0[position / SEGMENT_LEN].marks & bit(position) != 0
    }

    /// Marks an item or not.
    #[inline]
    pub(super) fn mark(&mut self, position: usize, is_marked: bool) {
        let segment = &mut self.0[position / SEGMENT_LEN];
        let bit = bit(position);
        let marks = if is_marked { segment.marks | bit } else { segment.marks & !bit };
        // Written only if it changes, because other threads read this cache line.
        if marks != segment.marks {
            segment.marks = marks;
        }
    }

    /// Removes an item. The last item moves to its position.
    ///
    /// # Panics
    ///
    /// If the position is out of bounds.
    pub(super) fn swap_remove(&mut self, position: usize) {
        let last = self.len() - 1;
        let is_marked = self.is_marked(last);
        let segment = self.0.last_mut().expect("an item to remove");
        segment.marks &= !bit(last);
        let item = segment.items.pop().expect("no segment is empty");
        if segment.items.is_empty() {
            self.0.pop();
        }
        if position != last {
            self[position] = item;
            self.mark(position, is_marked);
        }
    }
}

const fn bit(position: usize) -> u32 {
    1 << (position % SEGMENT_LEN)
}

impl<T> Index<usize> for SegmentedVec<T> {
    type Output = T;

    fn index(&self, position: usize) -> &T {
        &self.0[position / SEGMENT_LEN].items[position % SEGMENT_LEN]
    }
}

impl<T> IndexMut<usize> for SegmentedVec<T> {
    fn index_mut(&mut self, position: usize) -> &mut T {
        &mut self.0[position / SEGMENT_LEN].items[position % SEGMENT_LEN]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segmented_vec_holds_the_same_items_as_a_vec() {
        let (mut segmented, mut vector) = (SegmentedVec::default(), Vec::new());
        for step in 0..10_000_usize {
            // The length varies between 0 and about 200 items.
            if step % 1_000 < 200 || vector.is_empty() {
                segmented.push(step);
                vector.push((step, false));
            } else {
                let position = step * 7_919 % vector.len();
                segmented.swap_remove(position);
                vector.swap_remove(position);
            }
            if let Some(position) = (step * 104_729).checked_rem(vector.len()) {
                segmented.mark(position, step % 3 > 0);
                vector[position].1 = step % 3 > 0;
            }
            assert_eq!(segmented.len(), vector.len());
            for (position, one) in vector.iter().enumerate() {
                assert_eq!((segmented[position], segmented.is_marked(position)), *one);
            }
        }
    }
}
