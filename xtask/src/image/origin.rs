//! The origin of an image: version, commit and the commit's time, which is the time of every file
//! in it.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use cargo_metadata::MetadataCommand;

use crate::command::captured_stdout;

/// All packages have the version of this one.
const VERSIONED: &str = "mesh-proxy";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) version: String,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// The commit, with `-dirty` when the checkout differs from it. None outside a repository.
    pub(crate) revision: Option<String>,
}

impl Origin {
    /// Reads the origin from git. Outside a repository the time is `SOURCE_DATE_EPOCH`, or 0.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .no_deps()
            .exec()
            .context("read Cargo.toml")?;
        let package = metadata
            .packages
            .into_iter()
            .find(|package| package.name == VERSIONED);
        let version = package
            .with_context(|| format!("there is no package {VERSIONED}"))?
            .version
            .to_string();
        let time = match env::var("SOURCE_DATE_EPOCH") {
            Ok(given) => Some(given),
            Err(_) => git(root, &["log", "-1", "--format=%ct"]),
        };
        let time = match time {
            Some(time) => time
                .parse()
                .with_context(|| format!("read the time of the commit, `{time}`"))?,
            None => 0,
        };
        let revision = git(root, &["rev-parse", "HEAD"]).map(|commit| {
            let changed = git(root, &["status", "--porcelain", "--untracked-files=no"]);
            if changed.is_some_and(|files| !files.is_empty()) {
                format!("{commit}-dirty")
            } else {
                commit
            }
        });
        Ok(Self {
            version,
            time,
            revision,
        })
    }

    /// The time as RFC 3339 has it, in UTC.
    pub(crate) fn created(&self) -> String {
        let (year, month, day) = date(self.time / 86_400);
        let second = self.time % 86_400;
        format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(arguments);
    captured_stdout(&mut command).map(|answer| answer.trim().to_owned())
}

/// Year, month and day of a day counted from 1970-01-01. The calendar repeats every 400 years
/// (146,097 days); counting years from March puts the leap day at the end.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    // 1970-01-01 is day 719,468 of a calendar that begins on 0000-03-01.
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_time_is_formatted_as_rfc3339() {
        for (time, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_249_711, "2026-11-21T08:28:31Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let origin = Origin {
                version: String::new(),
                time,
                revision: None,
            };
            assert_eq!(origin.created(), expected);
        }
    }

    #[test]
    fn checkout_has_version() {
        let root = crate::workspace::root().expect("a checkout");
        let origin = Origin::read(&root).expect("an origin");
        assert_eq!(origin.version, env!("CARGO_PKG_VERSION"));
    }
}
