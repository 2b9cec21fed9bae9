//! What the agent provides for the proxies of units, beside their redirection: environment and
//! tokens; and the end of that, when the machine leaves its mesh.

use std::time::SystemTime;

use mesh_core::machine::Left;
use mesh_runtime::log::chain;

use super::records::UnitRecord;
use super::{Machine, MachineError, MachineReport, addresses};
use crate::membership::Membership;

impl Machine {
    /// Withdraws the units with a ServiceAccount, whose identity ends, and deletes key and
    /// certificate of the machine.
    pub fn leave(&mut self) -> Result<Left, MachineError> {
        let (records, _) = self.records.all()?;
        let with_account = records.into_iter().filter(|it| it.account.is_some());
        let units: Vec<String> = with_account.map(|it| it.redirect.unit).collect();
        for unit in &units {
            self.withdraw(unit)?;
        }
        let machine = self.identities.membership().leave()?;
        Ok(Left { machine, units })
    }

    /// Returns the key and the membership of the machine.
    pub(crate) fn membership(&self) -> &Membership {
        self.identities.membership()
    }

    /// Writes the record of a unit and what its proxy starts with.
    pub(super) fn write(&mut self, record: &UnitRecord) -> Result<(), MachineError> {
        self.records.put(record)?;
        self.provide(record)
    }

    /// Makes the environment and the token of a unit's proxy agree with its record and with the
    /// membership of the machine. Without that, a unit with a ServiceAccount keeps what it has.
    fn provide(&mut self, record: &UnitRecord) -> Result<(), MachineError> {
        let unit = &record.redirect.unit;
        let identity = match &record.account {
            None => String::new(),
            Some(account) => match self.identities.environment(unit, account) {
                Some(lines) => lines,
                None => return Ok(()),
            },
        };
        let has_ipv6 = addresses::has_ipv6_loopback();
        let records = &self.records;
        records.put_environment(&record.redirect, has_ipv6, &identity)?;
        if let Some(account) = &record.account {
            self.identities.refresh(unit, account, SystemTime::now())?;
        }
        Ok(())
    }

    /// Provides for the proxies of all units. If the records are complete, no other unit keeps a
    /// token.
    pub(super) fn provide_all(
        &mut self,
        records: &[UnitRecord],
        is_complete: bool,
        report: &mut MachineReport,
    ) {
        for record in records {
            if let Err(error) = self.provide(record) {
                report.failures.push(chain(&error));
            }
        }
        let with_account = records.iter().filter(|record| record.account.is_some());
        let units: Vec<&str> = with_account
            .map(|record| record.redirect.unit.as_str())
            .collect();
        if is_complete && let Err(error) = self.identities.retain(&units) {
            report.failures.push(chain(&error));
        }
        let membership = self.identities.membership();
        report.failures.extend(membership.problem());
    }
}
