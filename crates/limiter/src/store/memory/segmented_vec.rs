//! A list of items, each with two marks, that grows by segments. Growing copies nothing and leaves
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
    /// One bit for each item that changed.
    changed: u32,
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

    /// Adds an item without marks.
    pub(super) fn push(&mut self, item: T) {
        if self.0.last().is_none_or(|last| last.items.len() == SEGMENT_LEN) {
            self.0.push(Segment { items: Vec::with_capacity(SEGMENT_LEN), marks: 0, changed: 0 });
        }
        self.0.last_mut().expect("a segment that is not full").items.push(item);
    }

    pub(super) fn is_marked(&self, position: usize) -> bool {
        self.0[position / SEGMENT_LEN].marks & bit(position) != 0
    }

    /// Marks an item or not, and marks it as changed.
    #[inline]
    pub(super) fn mark_changed(&mut self, position: usize, is_marked: bool) {
        let segment = &mut self.0[position / SEGMENT_LEN];
        let bit = bit(position);
        let marks = if is_marked { segment.marks | bit } else { segment.marks & !bit };
        // Written only if it changes, because other threads read this cache line.
        if marks != segment.marks || segment.changed & bit == 0 {
            segment.marks = marks;
            segment.changed |= bit;
        }
    }

    pub(super) fn is_changed(&self, position: usize) -> bool {
        self.0[position / SEGMENT_LEN].changed & bit(position) != 0
    }

    /// Returns the last position before `end` whose item changed, or any item if `all`.
    #[cfg(any(feature = "journal", test))]
    pub(super) fn last_changed_before(&self, end: usize, all: bool) -> Option<usize> {
        let end = end.min(self.len());
        if all {
            return end.checked_sub(1);
        }
        let (mut segment, rest) = (end / SEGMENT_LEN, end % SEGMENT_LEN);
        // The bits of positions before `end` in its own segment, which may not exist.
        let mut changed = match self.0.get(segment) {
            Some(last) => last.changed & (bit(rest) - 1),
            None => 0,
        };
        while changed == 0 {
            segment = segment.checked_sub(1)?;
            changed = self.0[segment].changed;
        }
        Some(segment * SEGMENT_LEN + changed.ilog2() as usize)
    }

    /// Marks an item as not changed.
    pub(super) fn clear_changed(&mut self, position: usize) {
        self.0[position / SEGMENT_LEN].changed &= !bit(position);
    }

    /// Removes an item. The last item moves to its position.
    ///
    /// # Panics
    ///
    /// If the position is out of bounds.
    pub(super) fn swap_remove(&mut self, position: usize) {
        let last = self.len() - 1;
        let marks = (self.is_marked(last), self.is_changed(last));
        let segment = self.0.last_mut().expect("an item to remove");
        segment.marks &= !bit(last);
        segment.changed &= !bit(last);
        let item = segment.items.pop().expect("no segment is empty");
        if segment.items.is_empty() {
            self.0.pop();
        }
        if position != last {
            self[position] = item;
            self.mark_changed(position, marks.0);
            if !marks.1 {
                self.clear_changed(position);
            }
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
                vector.push((step, false, false));
            } else {
                let position = step * 7_919 % vector.len();
                segmented.swap_remove(position);
                vector.swap_remove(position);
            }
            if let Some(position) = (step * 104_729).checked_rem(vector.len()) {
                if step % 5 > 0 {
                    segmented.mark_changed(position, step % 3 > 0);
                    (vector[position].1, vector[position].2) = (step % 3 > 0, true);
                } else {
                    segmented.clear_changed(position);
                    vector[position].2 = false;
                }
            }
            assert_eq!(segmented.len(), vector.len());
            for (position, one) in vector.iter().enumerate() {
                let marks = (segmented.is_marked(position), segmented.is_changed(position));
                assert_eq!((segmented[position], marks.0, marks.1), *one);
            }
            if step % 97 == 0 {
                let end = step % 64 * vector.len() / 60;
                let before = &vector[..end.min(vector.len())];
                let last = before.iter().rposition(|(.., is_changed)| *is_changed);
                assert_eq!(segmented.last_changed_before(end, false), last);
                assert_eq!(segmented.last_changed_before(end, true), before.len().checked_sub(1));
            }
        }
    }
}
