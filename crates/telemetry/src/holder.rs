//! Bounded places that callers of different projects share.

/// On whose account a place is held.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub enum Holder {
    /// That of callers of all projects, for whom an eighth of the places is kept.
    #[default]
    AllProjects,
    /// That of one project, which has at most half of the places.
    Project(String),
    /// That of a caller who watches one project, or every one that it has a role in: neither the caller nor
    /// the project has more than half of the places. Callers without a name are one.
    Caller {
        /// Its name.
        name: String,
        /// The project; `None`: every one.
        project: Option<String>,
    },
}

impl Holder {
    /// Returns `true` if the holder may have another place among `most`, beside those that are held.
    pub fn has_capacity<'a>(&self, most: usize, held: impl Iterator<Item = &'a Self>) -> bool {
        let held: Vec<&Self> = held.collect();
        let own = held.iter().filter(|other| self.is_alike(other)).count();
        match self {
            Self::AllProjects => held.len() < most,
            Self::Project(_) | Self::Caller { .. } => {
                held.len() < most - most / 8 && own < most / 2
            }
        }
    }

    /// Returns `true` if the places of both are counted together.
    fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Caller { name, project }, Self::Caller { name: other, project: in_project }) => {
                name == other || project.is_some() && project == in_project
            }
            _ => self == other,
        }
    }

    /// Returns the name of a map that is the holder's own.
    pub fn own_map(&self, map: &str) -> String {
        match self {
            Self::AllProjects => map.to_owned(),
            Self::Project(id) | Self::Caller { name: id, .. } => format!("{map}:{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_project_has_more_than_half_and_an_eighth_is_for_callers_of_all() {
        let [shop, blog] = ["shop", "blog"].map(|id| Holder::Project(id.to_owned()));
        let mut held = Vec::new();
        let fill = |held: &mut Vec<Holder>, of: &Holder| {
            while of.has_capacity(16, held.iter()) {
                held.push(of.clone());
            }
            held.len()
        };
        assert_eq!(fill(&mut held, &shop), 8);
        assert_eq!(fill(&mut held, &blog), 14);
        assert_eq!(fill(&mut held, &Holder::AllProjects), 16);
    }

    #[test]
    fn neither_a_caller_nor_a_project_has_more_than_half() {
        let caller = |name: &str, project: Option<&str>| Holder::Caller {
            name: name.to_owned(),
            project: project.map(str::to_owned),
        };
        let mut held = Vec::new();
        let mut fill = |of: &Holder, most: usize| {
            let before = held.len();
            while held.len() < before + most && of.has_capacity(16, held.iter()) {
                held.push(of.clone());
            }
            held.len() - before
        };
        assert_eq!(fill(&caller("desk", Some("shop")), 5), 5);
        assert_eq!(fill(&caller("desk", None), 16), 3, "eight of the caller");
        assert_eq!(fill(&caller("team", Some("shop")), 16), 3, "eight of the project");
        assert_eq!(fill(&caller("", None), 16), 3, "seven eighths of all");
        assert_eq!(fill(&Holder::AllProjects, 16), 2);
    }
}
