//! Users of this machine, from its files `passwd` and `group`.
//!
//! Other sources of users, such as LDAP, are not queried.

use std::{fs, io};

/// A user, with all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
}

/// The user of this name or number; `None` if there is none.
///
/// # Errors
///
/// A file cannot be read.
pub(super) fn find(name: &str) -> io::Result<Option<User>> {
    let passwd = fs::read_to_string("/etc/passwd")?;
    // A machine without groups is possible.
    let group = fs::read_to_string("/etc/group").unwrap_or_default();
    Ok(find_in(name, &passwd, &group))
}

fn find_in(name: &str, passwd: &str, group: &str) -> Option<User> {
    let entries = || {
        passwd
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
    };
    let by_name = entries().find(|fields| fields.first() == Some(&name));
    let number = || name.parse::<u32>().ok();
    let by_number = || entries().find(|fields| fields.get(2) == Some(&name) && number().is_some());
    let fields = by_name.or_else(by_number)?;
    let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
        return None;
    };
    let gid = gid.parse().ok()?;
    let mut groups: Vec<u32> = group
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            let (gid, members) = (fields.next()?, fields.next()?);
            let is_member = members.split(',').any(|member| member == *name);
            is_member.then(|| gid.parse().ok()).flatten()
        })
        .chain([gid])
        .collect();
    groups.sort_unstable();
    groups.dedup();
    Some(User {
        uid: uid.parse().ok()?,
        gid,
        groups,
        home: (*home).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // on-change 45
    #[test]
    fn user_is_found_with_all_groups() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/var/www:/bin/false\nbroken\n";
        let group = "root:x:0:\nssl:x:110:other,web\nweb:x:34:\nx:y\n";
        let web = User {
            uid: 33,
            gid: 34,
            groups: vec![34, 110],
            home: "/var/www".to_owned(),
        };
        assert_eq!(find_in("web", passwd, group), Some(web.clone()));
        assert_eq!(find_in("33", passwd, group), Some(web));
        for unknown in ["broken", "", "34", "x"] {
            assert_eq!(find_in(unknown, passwd, group), None, "{unknown}");
        }
    }
}
