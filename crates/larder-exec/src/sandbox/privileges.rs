//! Privileges of the command: capabilities, and whether a program may gain more.
//!
//! They take two steps, because dropping a capability and changing the user need capabilities themselves:
//! 1. Before the process becomes the user of the pod: the bounding set, and the ambient set, which is emptied.
//! 2. After that: permitted, effective and inheritable sets, and `no_new_privs`.

use anyhow::Context as _;
use larder_console as console;
use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
        clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
        set_no_new_privs,
    },
};
use serde::{Deserialize, Serialize};

/// The limits that a security context sets. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Privileges {
    /// The capabilities that the command may have, as bits; `None` leaves the caller's.
    pub(crate) capabilities: Option<u64>,
    /// Those among them that the pod adds, as bits.
    pub(crate) added: u64,
    /// Whether set-user-ID programs and file capabilities have no effect (`allowPrivilegeEscalation: false`).
    pub(crate) no_escalation: bool,
}

impl Privileges {
    fn allowed(&self) -> Option<CapabilitySet> {
        self.capabilities.map(CapabilitySet::from_bits_retain)
    }

    /// Step 1. Added capabilities that this process does not have are named in a warning.
    ///
    /// # Errors
    ///
    /// A capability cannot be dropped.
    pub(super) fn limit(&self) -> anyhow::Result<()> {
        let Some(allowed) = self.allowed() else {
            return Ok(());
        };
        let mut unavailable = CapabilitySet::empty();
        clear_ambient_capability_set().context("cannot clear the ambient capabilities")?;
        for bit in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << bit);
            match capability_is_in_bounding_set(capability) {
                Ok(true) if !allowed.contains(capability) => {
                    remove_capability_from_bounding_set(capability)
                        .context("cannot drop capabilities")?;
                }
                Ok(false) => unavailable |= capability,
                Ok(true) => {}
                // The kernel knows no further ones.
                Err(Errno::INVAL) => break,
                Err(errno) => return Err(errno).context("cannot read the bounding capabilities"),
            }
        }
        let unavailable = unavailable & CapabilitySet::from_bits_retain(self.added);
        let names: Vec<_> = unavailable.iter_names().map(|(name, _)| name).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            console::note(format_args!(
                "capabilities {names} are not available here, ignored"
            ));
        }
        Ok(())
    }

    /// Step 2.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub(super) fn seal(&self) -> anyhow::Result<()> {
        if let Some(allowed) = self.allowed() {
            let now = capabilities(None).context("cannot read the capabilities")?;
            let sets = CapabilitySets {
                effective: now.effective & allowed,
                permitted: now.permitted & allowed,
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, sets).context("cannot set the capabilities")?;
        }
        if self.no_escalation {
            set_no_new_privs(true).context("cannot set no_new_privs")?;
        }
        Ok(())
    }
}
