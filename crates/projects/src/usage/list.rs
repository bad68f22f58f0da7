//! Listing the usage of projects.

use std::collections::BTreeSet;

use rlaas_auth::ProjectId;
use rlaas_core::clock::Deadline;
use rlaas_limiter::fleet::RegisterValues;
use rlaas_limiter::store::StoreError;

use super::totals::Part;
use super::{
    COUNTING, Day, KEPT_DAYS, MAPS_PER_CALL, RequestUsage, UsageRecorder, map_of, map_of_instances,
    map_of_names, parse_total,
};

/// Most maps that are read for a page.
const MAPS_PER_PAGE: usize = 20_000;

/// What the rows of a list are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageBy {
    /// The requests of a project on a day.
    #[default]
    Day,
    /// Those of each of its API keys.
    Key,
    /// The decisions of each of its rules.
    Rule,
}

impl UsageBy {
    pub(super) fn part(self, name: &str) -> Part {
        match self {
            Self::Day => Part::Whole,
            Self::Key => Part::Key(name.into()),
            Self::Rule => Part::Rule(name.into()),
        }
    }
}

/// The rows to list: the days are both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// What each row is of.
    pub by: UsageBy,
    /// The first day. `None`: the first one that is kept.
    pub first: Option<Day>,
    /// The last day. `None`: today.
    pub last: Option<Day>,
}

/// The usage of a project on a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DailyUsage {
    /// The project.
    pub project: ProjectId,
    /// The day.
    pub day: Day,
    /// Id of the API key, or name of the rule. Empty: requests without a key, or all keys or rules
    /// without a row; or all, in a list by day.
    pub name: String,
    /// Requests and units.
    pub usage: RequestUsage,
    /// Whether more may come: the day is not over, or an instance has not written all of it.
    pub is_preliminary: bool,
}

/// A place in a list: a project, a day, and a name of that day. `None` is its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsagePlace(pub ProjectId, pub Day, pub Option<String>);

/// A page of usage, by project, day and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePage {
    /// The rows.
    pub rows: Vec<DailyUsage>,
    /// Place after which the next page begins. `None`: this is the last one.
    pub next: Option<UsagePlace>,
}

/// A total of a project on a day.
type TotalPlace = (ProjectId, Day, Part);

/// What this instance has counted and possibly not written.
struct OwnTotals {
    names: Vec<String>,
    /// Of each place that is read.
    usage: Vec<RequestUsage>,
}

impl UsagePlace {
    /// Returns `true` if a name of a day, or the end of the day, is after the place.
    fn is_before(&self, project: &ProjectId, day: Day, name: Option<&str>) -> bool {
        let Self(of_project, of_day, of_name) = self;
        // The end comes after all names.
        let of_name = of_name.as_deref();
        (of_project, *of_day, of_name.is_none(), of_name) < (project, day, name.is_none(), name)
    }
}

impl UsageRecorder {
    /// Returns up to `size` rows with usage, after a place. Days are left out before the kept ones
    /// and after tomorrow. A page may have fewer, or none, though it is not the last one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn list(
        &self,
        mut projects: Vec<ProjectId>,
        UsageQuery { by, first, last }: UsageQuery,
        after: Option<&UsagePlace>,
        size: usize,
        deadline: Deadline,
    ) -> Result<UsagePage, StoreError> {
        self.read().await;
        let today = Day::at(self.0.clock.now());
        let kept = today.minus(KEPT_DAYS - 1);
        let first = first.unwrap_or(kept).max(kept);
        let last = last.unwrap_or(today).min(today.plus(1));
        projects.sort_unstable();
        let places = projects.into_iter().flat_map(|project| {
            first.up_to(last).map(move |day| (project.clone(), day, Part::Whole))
        });
        let mut places = places.filter(|(project, day, _)| {
            after.is_none_or(|after| after.is_before(project, *day, None))
        });
        let complete_from = self.first_preliminary(today, deadline).await?;
        let (mut page, mut scanned) = (UsagePage::default(), 0);
        while scanned < MAPS_PER_PAGE {
            let some: Vec<_> = places.by_ref().take(MAPS_PER_CALL).collect();
            if some.is_empty() {
                page.next = None;
                return Ok(page);
            }
            scanned += some.len();
            let usage = self.usage_of(&some, deadline).await?;
            for ((project, day, _), whole) in some.into_iter().zip(usage) {
                if scanned >= MAPS_PER_PAGE && by != UsageBy::Day {
                    return Ok(page);
                }
                let (name, is_preliminary) = (String::new(), day >= complete_from);
                let whole = DailyUsage { project, day, name, usage: whole, is_preliminary };
                let named = self.named(by, &whole, deadline).await?;
                scanned += named.len();
                let rows = named.into_iter().filter(|(name, usage)| {
                    let is_after =
                        |after: &UsagePlace| after.is_before(&whole.project, day, Some(name));
                    *usage != RequestUsage::default() && after.is_none_or(is_after)
                });
                let row = |(name, usage)| DailyUsage { name, usage, ..whole.clone() };
                page.rows.extend(rows.map(row));
                if page.rows.len() > size {
                    page.rows.truncate(size);
                    let last = page.rows.last().cloned();
                    page.next = last.map(|row| UsagePlace(row.project, row.day, Some(row.name)));
                    return Ok(page);
                }
                page.next = Some(UsagePlace(whole.project, day, None));
            }
        }
        Ok(page)
    }

    /// Returns the rows of a project and day, by name, given all of its usage.
    async fn named(
        &self,
        by: UsageBy,
        whole: &DailyUsage,
        deadline: Deadline,
    ) -> Result<Vec<(String, RequestUsage)>, StoreError> {
        let DailyUsage { project, day, usage: whole, .. } = whole;
        if by == UsageBy::Day || *whole == RequestUsage::default() {
            return Ok(vec![(String::new(), *whole)]);
        }
        let map = map_of_names(project.as_str(), *day, by);
        let listed = self.0.fleet.registers(&[map], deadline).await?;
        let mut names: BTreeSet<String> =
            listed.into_iter().flatten().map(|(name, _)| name).collect();
        for open in self.state().totals.days().iter().filter(|open| open.day == *day) {
            names.extend(open.names_of(project.as_str(), by).map(ToString::to_string));
        }
        names.insert(String::new());
        let place = |name: &String| (project.clone(), *day, by.part(name));
        let places: Vec<_> = names.iter().map(place).collect();
        let mut usage = Vec::with_capacity(places.len());
        for some in places.chunks(MAPS_PER_CALL) {
            usage.extend(self.usage_of(some, deadline).await?);
        }
        if by == UsageBy::Key {
            // No total has the requests without a key, and those with keys that have none.
            let of_keys = usage.iter().copied().fold(RequestUsage::default(), RequestUsage::plus);
            usage[0] = whole.without(of_keys);
        }
        Ok(names.into_iter().zip(usage).collect())
    }

    /// Returns the usage at each place.
    async fn usage_of(
        &self,
        places: &[TotalPlace],
        deadline: Deadline,
    ) -> Result<Vec<RequestUsage>, StoreError> {
        // Before the store is read: what is written meanwhile counts once.
        let own = self.own_totals(places);
        let maps: Vec<_> = places
            .iter()
            .map(|(project, day, part)| map_of(project.as_str(), *day, part))
            .collect();
        let read = self.0.fleet.registers(&maps, deadline).await?;
        let sum = |(values, live): (RegisterValues, &RequestUsage)| {
            let others = values.iter().filter(|(name, _)| !own.names.contains(name));
            let others = others.filter_map(|(_, value)| parse_total(value));
            others.fold(*live, RequestUsage::plus)
        };
        Ok(read.into_iter().zip(&own.usage).map(sum).collect())
    }

    fn own_totals(&self, places: &[TotalPlace]) -> OwnTotals {
        let state = self.state();
        let days = state.totals.days();
        let usage = |(project, day, part): &TotalPlace| {
            let open = days.iter().filter(|open| open.day == *day);
            open.fold(RequestUsage::default(), |sum, open| {
                sum.plus(open.total_of(project.as_str(), part))
            })
        };
        OwnTotals {
            names: days.iter().map(|open| open.name.clone()).collect(),
            usage: places.iter().map(usage).collect(),
        }
    }

    /// Returns the first day of which more may come. An instance that does not say that it has
    /// written all of a day is waited for until the end of the next one.
    async fn first_preliminary(&self, today: Day, deadline: Deadline) -> Result<Day, StoreError> {
        let yesterday = today.minus(1);
        let instances = self.0.fleet.registers(&[map_of_instances(yesterday)], deadline).await?;
        let is_counting = instances.iter().flatten().any(|(_, value)| value == COUNTING);
        Ok(if is_counting { yesterday } else { today })
    }
}
