//! The mounts of a namespace, as a `mountinfo` lists them (proc(5)), one line at a time.
//!
//! Anyone with the permission to mount chooses how many mounts there are, and where: a namespace can list a hundred
//! thousand lines, each with two paths of 16 KiB. So a table is never held as a whole, and reading it takes time in
//! proportion to its length.

use std::{
    borrow::Cow,
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read},
    ops::ControlFlow,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use super::proc_directory::{PAGE, number};

/// Most bytes of a line that are looked at. The paths are in the first 33 KiB of the longest one; options of file
/// systems follow.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// A mount.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountLine<'a> {
    pub(crate) id: u64,
    /// The mount that it is made on.
    pub(crate) parent: u64,
    pub(crate) device: &'a [u8],
    root: &'a [u8],
    mount_point: &'a [u8],
    /// Such as `ro,nosuid`.
    pub(crate) options: &'a [u8],
    /// Whether what is mounted on it appears elsewhere, too.
    pub(crate) is_shared: bool,
    /// The type of its file system, such as `overlay`.
    pub(crate) file_system: &'a [u8],
}

impl<'a> MountLine<'a> {
    /// Reads a line; `None` if it is malformed.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ' || byte == b'\n');
        let mut path = MountLine {
            id: number(fields.next()?)?,
            parent: number(fields.next()?)?,
            device: fields.next()?,
            root: &[],
            mount_point: &[],
            options: &[],
            is_shared: false,
            file_system: &[],
        };
        path.root = fields.next().filter(|path| !path.is_empty())?;
        path.mount_point = fields.next().filter(|path| !path.is_empty())?;
        path.options = fields.next().unwrap_or_default();
        for tag in fields.by_ref().take_while(|field| *field != b"-") {
            path.is_shared |= tag.starts_with(b"shared:");
        }
        path.file_system = fields.next().unwrap_or_default();
        Some(path)
    }

    /// The directory of the file system that is mounted.
    pub(crate) fn root(&self) -> Cow<'a, Path> {
        unescaped(self.root)
    }

    pub(crate) fn mount_point(&self) -> Cow<'a, Path> {
        unescaped(self.mount_point)
    }
}

/// The part of `path` beneath `dir`, empty if they are the same; both are written as the kernel does. Much faster than
/// [`Path::strip_prefix`], which takes apart each name.
pub(crate) fn below<'a>(path: &'a Path, dir: &Path) -> Option<&'a Path> {
    let dir = dir.as_os_str().as_bytes();
    let mut rest = path.as_os_str().as_bytes().strip_prefix(dir)?;
    if !(rest.is_empty() || rest.starts_with(b"/") || dir == b"/") {
        return None;
    }
    // Two at the end of a directory that is gone: `/a//deleted`.
    while let [b'/', names @ ..] = rest {
        rest = names;
    }
    Some(Path::new(OsStr::from_bytes(rest)))
}

/// Passes every line of a table to `each`, but for malformed ones, until it breaks off.
///
/// # Errors
///
/// The table was not read to its end, or to the line that `each` wants to be the last.
pub(crate) fn each_mount(
    table: impl Read,
    mut each: impl FnMut(&MountLine<'_>) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut table = BufReader::with_capacity(PAGE, table);
    let mut line = Vec::new();
    loop {
        line.clear();
        table
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        match line.last() {
            None => return Ok(()),
            Some(b'\n') => {}
            Some(_) => {
                table.skip_until(b'\n')?;
            }
        }
        if let Some(mount) = MountLine::parse(&line)
            && each(&mount).is_break()
        {
            return Ok(());
        }
    }
}

/// The path in a field of `mountinfo`, in which blanks, tabs, line ends and backslashes are octal numbers (proc(5)).
pub fn unescaped(field: &[u8]) -> Cow<'_, Path> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(Path::new(OsStr::from_bytes(field)));
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'\\').then(|| after.get(..3)).flatten();
        let number = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(number) = number {
            bytes.push(number);
            rest = &after[3..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    Cow::Owned(OsStr::from_bytes(&bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identifiers, roots and mount points of a table.
    fn mounts(text: &[u8]) -> Vec<(u64, String, String)> {
        let mut mounts = Vec::new();
        each_mount(text, |mount| {
            let text = |path: Cow<'_, Path>| path.display().to_string();
            mounts.push((mount.id, text(mount.root()), text(mount.mount_point())));
            ControlFlow::Continue(())
        })
        .unwrap();
        mounts
    }

    #[test]
    fn a_path_is_below_the_directories_on_the_way_to_it() {
        let below = |path: &'static str, dir: &str| below(Path::new(path), Path::new(dir));
        for dir in ["/", "/a", "/a/b"] {
            let rest = Path::new("/a/b/c").strip_prefix(dir).unwrap();
            assert_eq!(below("/a/b/c", dir), Some(rest));
        }
        assert_eq!(below("/a//deleted", "/a"), Some(Path::new("deleted")));
        for same in ["/", "/a"] {
            assert_eq!(below(same, same), Some(Path::new("")));
        }
        for (path, dir) in [("/ab", "/a"), ("/a", "/ab"), ("/", "/a"), ("/b", "/a")] {
            assert_eq!(below(path, dir), None);
        }
    }

    #[test]
    fn escaped_paths_are_read_and_malformed_lines_skipped() {
        let text = b"36 35 98:0 /a\\040b /mnt\\134x rw - ext4 /dev/vda rw\nmalformed\n\n\
            -1 35 98:0 / /\n37 35 98:0  /empty\n38 35 98:0 /\n\xff 35 98:0 / /\n39 38 0:1 /\\9 /\\\n";
        let expected = [
            (36, "/a b".to_owned(), "/mnt\\x".to_owned()),
            (39, "/\\9".to_owned(), "/\\".to_owned()),
        ];
        assert_eq!(mounts(text), expected);
    }

    #[test]
    fn overlong_line_hides_no_other() {
        let long = b"x".repeat(3 << 20);
        let text = [b"1 0 0:1 / /first rw ", &long[..], b"\n2 0 0:1 / /second\n"].concat();
        let found: Vec<_> = mounts(&text).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(found, [1, 2]);
        // Without an end.
        assert_eq!(mounts(&long), []);
    }
}
