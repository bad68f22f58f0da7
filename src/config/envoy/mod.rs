//! The section `envoy`, and the rule files of envoyproxy/ratelimit that it names.

pub(super) mod file;
mod folder;
mod limit;
mod resource;
mod scan;
mod verbatim;
mod xds;

pub use self::resource::EnvoyResource;
pub use self::xds::{XdsSettings, XdsTls};

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::value::Value;
use rlaas_auth::ProjectId;

use self::folder::FolderContents;
use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, Read};
use super::watch::FileSnapshot;
use super::yaml;
use crate::algorithm::Window;
use crate::api::envoy::{DynamicMetadata, EnvoySettings};
use crate::calendar::{Calendar, CalendarUnit};
use crate::rules::descriptors::{Descriptor, Descriptors};
use crate::rules::spec::{self, Field};
use crate::rules::{Coupling, Share};

/// The settings and rules of the section.
pub(super) struct Envoy {
    pub(super) settings: EnvoySettings,
    /// The management server of the rules.
    pub(super) xds: Option<XdsSettings>,
    pub(super) descriptors: Descriptors,
    /// Snapshots of the files and folders, taken before they were read.
    pub(super) files: Vec<FileSnapshot>,
}

/// The descriptor trees by domain.
struct Domains {
    trees: BTreeMap<String, Siblings>,
    settings: TreeSettings,
}

/// Settings for all files and resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TreeSettings {
    metadata: DynamicMetadata,
    coupling: Coupling,
    /// `true` if a month is one of the calendar.
    calendar_month: bool,
    /// That of limits without one.
    near_limit: Field<Share>,
}

/// The descriptors of one list. No two have the same key and value.
#[derive(Default)]
struct Siblings {
    descriptors: Vec<Descriptor>,
    pairs: HashSet<(String, Option<String>)>,
}

const ENVOY: Setting = Setting::new(
    "envoy",
    "Rate limit service for Envoy: envoy.service.ratelimit.v3, on server.listen.",
);
const FILES: Setting = Setting::new(
    "files",
    "Configuration files of envoyproxy/ratelimit, or folders, whose files are all read except \
     hidden ones. Paths are relative to the file that names them. Changes are reloaded.",
);
const DEADLINE: Setting =
    Setting::new("deadline", "Maximum time for a response. Envoy waits 20ms by default.");
const COUNT_REFUSED: Setting = Setting::new(
    "count-refused",
    "true: a denied request takes units from its other descriptors, as in \
     envoyproxy/ratelimit.",
);
const CALENDAR_MONTH: Setting = Setting::new(
    "calendar-month",
    "true: unit: month is a month of the calendar, in UTC, as in envoyproxy/ratelimit with \
     USE_CALENDAR_MONTH_RATE_LIMIT. A month has 30 days else.",
);
const ENVOY_NEAR_LIMIT: Setting = Setting::new(
    "near-limit",
    "Share of a limit above which metrics count allowed hits as near_limit, of limits that do not \
     say it themselves, as in envoyproxy/ratelimit with NEAR_LIMIT_RATIO. Default: none.",
)
.example("0.8");
const HEADERS: Setting = Setting::new(
    "headers",
    "Headers that Envoy adds to its responses, as in http.headers, with Retry-After.",
);
const METADATA: Setting = Setting::new(
    "metadata",
    "true: responses have dynamic_metadata: the request, and the metadata of the rules that \
     allow it.",
);

const PROJECTS: Setting = Setting::new(
    "projects",
    "Domains whose requests the rules of a project decide, in the place of files: a descriptor is a \
     request whose attributes are its entries; user_id and resource are the user and the resource.",
);
const PROJECT: Setting =
    Setting::new("domain", "Id of the project that decides the domain of this name.")
        .example("shop");
const PROJECT_ENTRY: Setting = Setting::new(
    "project-entry",
    "Name of the entry whose value is the id of the project, in requests of other domains. Who \
     may call Envoy's service may name any project. Unset: no entry does.",
)
.example("tenant");
const MISSING_ENTRY: Setting = Setting::new(
    "missing-entry",
    "With project-entry: deny or allow requests without that entry, in domains that neither files, xds nor \
     projects have.",
);

/// Reads the section, the files that it names, and the rules of a management server.
pub(super) fn read(root: &mut Section<'_>, resources: &[EnvoyResource]) -> Envoy {
    const VALID_PROJECT: &str = "must be the id of a project: 1 to 63 lower case letters, digits or -, beginning with a letter";
    const VALID_DEADLINE: &str = "must be a duration from 1ms to 1h, such as 15ms";
    let mut section = root.section(ENVOY);
    let folder = section.folder_of(FILES.key).unwrap_or_default();
    let paths = section.read(FILES, "", |value| paths(value, &folder));
    let deadline = section.read(DEADLINE, "15ms", |value| {
        let range = Duration::from_millis(1)..=Duration::from_hours(1);
        values::duration(value, range, VALID_DEADLINE)
    });
    let count_refused = section.read(COUNT_REFUSED, "false", values::boolean);
    let calendar_month = section.read(CALENDAR_MONTH, "false", values::boolean);
    let near_limit = section.optional(ENVOY_NEAR_LIMIT, |value| match values::field(value)? {
        (Field::Set(share), shown) => Ok((share, shown)),
        _ => Err(Invalid::new("must be a number above 0 and at most 1, such as 0.5")),
    });
    let near_limit = near_limit.map_or(Field::Unset, Field::Set);
    let headers = section.read(HEADERS, "none", values::limit_headers);
    let answers_metadata = section.read(METADATA, "false", values::boolean);
    let metadata = if answers_metadata { DynamicMetadata::Always } else { DynamicMetadata::Never };
    let xds = xds::read(&mut section);
    let project_entry = section.optional(PROJECT_ENTRY, values::text);
    let missing_entry = section.read(MISSING_ENTRY, "deny", values::missing_entry);
    let mut of_projects = section.section(PROJECTS);
    let (mut projects, mut wrong) = (BTreeMap::<String, ProjectId>::new(), Vec::new());
    for (domain, project) in of_projects.fields::<String>(PROJECT) {
        match project.value().and_then(|id| id.parse().ok()) {
            Some(id) => _ = projects.insert(domain, id),
            None => wrong.push(spec::Problem { field: domain, text: VALID_PROJECT.to_owned() }),
        }
    }
    of_projects.refuse_fields(wrong);
    section.close();

    let coupling = if count_refused { Coupling::EachAlone } else { Coupling::AllOrNothing };
    let of_trees = TreeSettings { metadata, coupling, calendar_month, near_limit };
    let mut domains = Domains { trees: BTreeMap::new(), settings: of_trees };
    let mut files = Vec::new();
    for path in paths {
        files.push(FileSnapshot::take(&path));
        let found =
            if path.is_dir() { folder::find(&path, root) } else { FolderContents::from_file(path) };
        // The snapshot of a folder shows added and removed files, not changed ones.
        files.extend(found.folders.iter().map(|folder| FileSnapshot::take(folder)));
        for file in found.files {
            files.push(FileSnapshot::take(&file));
            file::read(&file, &mut domains, root);
        }
    }
    for domain in projects.keys().filter(|domain| domains.trees.contains_key(*domain)) {
        let both = "must not be a domain of envoy.files: the rules of the project decide it";
        of_projects.refuse(domain, Invalid::new(both));
    }
    of_projects.close();
    for resource in resources {
        resource.add_to(&mut domains, &projects, root);
    }
    let domains = domains.trees.into_iter().map(|(name, tree)| (name, tree.descriptors)).collect();
    let settings =
        EnvoySettings { deadline, headers, metadata, projects, project_entry, missing_entry };
    let month = Calendar::new(CalendarUnit::Month, Calendar::DEFAULT_ZONE, None);
    let month = month.ok().filter(|_| calendar_month).map(Window::from);
    let descriptors = Descriptors::new(domains, coupling).with_months(month);
    Envoy { settings, xds, descriptors, files }
}

/// Reads one or several paths, relative to the folder of the configuration file. An empty string means
/// none. The effective configuration shows absolute paths.
fn paths(value: &Value, folder: &Path) -> Read<Vec<PathBuf>> {
    let none = matches!(value, Value::Array(_, items) if items.is_empty());
    if none || value.as_str() == Some("") {
        return Ok((Vec::new(), "[]".to_owned()));
    }
    let texts = values::texts(value).map_err(|_| Invalid::new("must be a list of paths"))?;
    let paths: Vec<PathBuf> = texts.iter().map(|text| folder.join(text)).collect();
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let shown: Vec<String> =
        paths.iter().map(|path| absolute(path).display().to_string()).collect();
    Ok((paths, yaml::list(&shown)))
}
