//! The supported versions of the CNI specification, and the commands that each has.

use std::str::FromStr;

mesh_core::names! {
    /// Ordered: later versions are greater.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Version, ALL {
        V0_3_0 = "0.3.0",
        V0_3_1 = "0.3.1",
        V0_4_0 = "0.4.0",
        V1_0_0 = "1.0.0",
        V1_1_0 = "1.1.0",
    }
}

impl Version {
    pub const LATEST: Self = Self::V1_1_0;

    pub fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    pub fn has_status_and_gc(self) -> bool {
        self >= Self::V1_1_0
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or(())
    }
}
