//! Listing the usage of projects.

use rlaas_limiter::fleet::RegisterValues;

use super::{
    COUNTING, Day, KEPT_DAYS, RequestUsage, UsageRecorder, map_of_day, map_of_instances,
    parse_total,
};
use crate::api::projects::ProjectId;
use crate::clock::Deadline;
use crate::store::StoreError;

/// Maps that are read at a time: those of 25 projects.
const MAPS_PER_READ: usize = 1_000;
/// Most maps that are read for a page.
const MAPS_PER_PAGE: usize = 20_000;

/// Days to list, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageRange {
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
    /// Requests and units.
    pub usage: RequestUsage,
    /// Whether more may come: the day is not over, or an instance has not written all of it.
    pub is_preliminary: bool,
}

/// A page of usage, by project and day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePage {
    /// The rows.
    pub rows: Vec<DailyUsage>,
    /// Place after which the next page begins. `None`: this is the last one.
    pub next: Option<(ProjectId, Day)>,
}

/// What this instance has counted and possibly not written.
struct OwnTotals {
    names: Vec<String>,
    /// Of each place that is read.
    usage: Vec<RequestUsage>,
}

impl UsageRecorder {
    /// Returns up to `size` days with usage, after a place. Days are left out before the kept ones
    /// and after tomorrow. A page may have fewer, or none, though it is not the last one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn list(
        &self,
        projects: Vec<ProjectId>,
        range: UsageRange,
        after: Option<&(ProjectId, Day)>,
        size: usize,
        deadline: Deadline,
    ) -> Result<UsagePage, StoreError> {
        self.read();
        let today = Day::at(self.0.clock.now());
        let kept = today.minus(KEPT_DAYS - 1);
        let first = range.first.unwrap_or(kept).max(kept);
        let last = range.last.unwrap_or(today).min(today.plus(1));
        let mut projects = projects;
        projects.sort_unstable();
        let places = projects
            .into_iter()
            .flat_map(|project| first.up_to(last).map(move |day| (project.clone(), day)));
        let mut places = places.filter(|place| after.is_none_or(|after| place > after));
        let complete_from = self.first_preliminary(today, deadline).await?;
        let (mut page, mut scanned) = (UsagePage::default(), 0);
        loop {
            let some: Vec<_> = places.by_ref().take(MAPS_PER_READ).collect();
            let Some(last_place) = some.last().cloned() else { return Ok(page) };
            scanned += some.len();
            let usage = self.usage_of(&some, deadline).await?;
            for ((project, day), usage) in some.into_iter().zip(usage) {
                if usage != RequestUsage::default() {
                    let is_preliminary = day >= complete_from;
                    page.rows.push(DailyUsage { project, day, usage, is_preliminary });
                }
            }
            if page.rows.len() > size {
                page.rows.truncate(size);
                page.next = page.rows.last().map(|row| (row.project.clone(), row.day));
                return Ok(page);
            }
            if scanned >= MAPS_PER_PAGE {
                page.next = Some(last_place);
                return Ok(page);
            }
        }
    }

    /// Returns the usage at each place.
    async fn usage_of(
        &self,
        places: &[(ProjectId, Day)],
        deadline: Deadline,
    ) -> Result<Vec<RequestUsage>, StoreError> {
        // Before the store is read: what is written meanwhile counts once.
        let own = self.own_totals(places);
        let maps: Vec<_> =
            places.iter().map(|(project, day)| map_of_day(project.as_str(), *day)).collect();
        let read = self.0.fleet.registers(&maps, deadline).await?;
        let sum = |(values, live): (RegisterValues, &RequestUsage)| {
            let others = values.iter().filter(|(name, _)| !own.names.contains(name));
            let others = others.filter_map(|(_, value)| parse_total(value));
            others.fold(*live, RequestUsage::plus)
        };
        Ok(read.into_iter().zip(&own.usage).map(sum).collect())
    }

    fn own_totals(&self, places: &[(ProjectId, Day)]) -> OwnTotals {
        let state = self.state();
        let days = state.totals.days();
        let usage = |(project, day): &(ProjectId, Day)| {
            let open = days.iter().filter(|open| open.day == *day);
            open.fold(RequestUsage::default(), |sum, open| {
                sum.plus(open.total_of(project.as_str()))
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
