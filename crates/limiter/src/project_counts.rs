//! Counts of entries by project, to find the one that has to make space.

use hashbrown::HashMap;

/// Numbers of entries by project. Entries of no project are not counted: they cost nothing, and are
/// what is left of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProjectCounts(HashMap<Box<[u8]>, usize>);

impl ProjectCounts {
    /// Counts an entry.
    #[inline]
    pub(crate) fn add(&mut self, project: &[u8]) {
        if project.is_empty() {
            return;
        }
        match self.0.get_mut(project) {
            Some(count) => *count += 1,
            None => _ = self.0.insert(project.into(), 1),
        }
    }

    /// Counts an entry no longer.
    #[inline]
    pub(crate) fn remove(&mut self, project: &[u8]) {
        if project.is_empty() {
            return;
        }
        if let Some(count) = self.0.get_mut(project) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(project);
            }
        }
    }

    /// Returns `true` if there are entries of no project alone.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the project with most of `all` entries, which may be none.
    pub(crate) fn largest(&self, all: usize) -> Box<[u8]> {
        let without = all.saturating_sub(self.0.values().sum());
        let largest = self.0.iter().max_by_key(|(_, count)| **count);
        let largest = largest.filter(|(_, count)| **count > without);
        largest.map(|(project, _)| project.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_project_is_found_among_those_with_and_without() {
        let mut counts = ProjectCounts::default();
        assert_eq!((counts.is_empty(), &*counts.largest(5)), (true, &b""[..]));
        for project in [&b"a"[..], b"b", b"b", b""] {
            counts.add(project);
        }
        assert_eq!(&*counts.largest(4), b"b");
        assert_eq!(&*counts.largest(9), b"");
        counts.remove(b"b");
        counts.remove(b"b");
        assert_eq!(&*counts.largest(1), b"a");
        counts.remove(b"a");
        counts.remove(b"a");
        assert!(counts.is_empty());
    }
}
