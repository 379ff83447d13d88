//! The atomic writer beside the kubelet's system calls: both subjects write the same payloads in turns, so that a busy
//! machine slows both. Prints for each case the median of a pass of either, and the ratio: the median of all pairs,
//! with their quartiles. Above 1, larder is faster. CPU time is that of the thread, system calls included; it hardly
//! depends on other processes.
//!
//! On the disk of `TMPDIR` and on tmpfs. `LARDER_PAIRS` sets the number of pairs, 300 by default.

#![expect(clippy::print_stdout, reason = "a benchmark shows its result")]

mod kubelet;

use std::{env, hint::black_box, path::Path};

use jiff::Timestamp;
use larder_projection::{File, Payload, Value, VolumePath, disk::AtomicWriter};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

/// Wall time and CPU time of this thread, in nanoseconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

fn main() {
    let pairs = env::var("LARDER_PAIRS").map_or(300, |pairs| pairs.parse().expect("a number"));
    println!(
        "{:<28} {:>11} {:>11}  {:<21} {:<21}",
        "pass", "kubelet", "larder", "ratio, wall time", "ratio, CPU time"
    );
    for (files, bytes, label) in [(5, 1 << 10, "5 × 1 KB"), (50, 20 << 10, "50 × 20 KB")] {
        for (parent, place) in [(env::temp_dir(), "disk"), ("/dev/shm".into(), "tmpfs")] {
            let contents = [vec![b'0'; bytes], vec![b'1'; bytes]];
            let payloads = [payload(files, &contents[0]), payload(files, &contents[1])];
            for changed in [true, false] {
                let costs = measure(&parent, &payloads, changed, pairs);
                let what = if changed { "changed" } else { "unchanged" };
                report(&format!("{label} {what}, {place}"), costs);
            }
        }
    }
}

fn payload(files: usize, data: &[u8]) -> Payload<'_> {
    let file = |number| {
        let path = VolumePath::parse(&format!("file-{number}")).expect("a plain name");
        let file = File {
            data: Value::Borrowed(data),
            mode: 0o644,
            owner: None,
        };
        (path, file)
    };
    (0..files).map(file).collect()
}

/// Lets both write in turns; returns the costs of each pair, the kubelet's first.
fn measure(
    parent: &Path,
    payloads: &[Payload<'_>; 2],
    changed: bool,
    pairs: usize,
) -> Vec<[Cost; 2]> {
    let now = Timestamp::from_second(1_772_366_400).expect("a time in range");
    let mut random = fastrand::Rng::with_seed(1);
    let volumes = [(); 2].map(|()| TempDir::new_in(parent).expect("a directory"));
    let writer = AtomicWriter::open(volumes[1].path()).expect("a volume");
    let kubelet = |pass: usize, payload: &Payload<'_>| {
        kubelet::write(volumes[0].path(), payload, pass).expect("nothing is in the way")
    };
    let mut larder = |payload: &Payload<'_>| {
        let written = writer.write(payload, now, &mut random);
        written.expect("nothing is in the way").swapped
    };
    kubelet(0, &payloads[0]);
    larder(&payloads[0]);
    let mut costs = Vec::with_capacity(pairs);
    for pass in 1..=pairs {
        let payload = &payloads[if changed { pass % 2 } else { 0 }];
        let mut pair = [Cost {
            wall: 0.0,
            cpu: 0.0,
        }; 2];
        // Each goes first half of the time.
        for subject in [pass / 2 % 2, 1 - pass / 2 % 2] {
            let before = time();
            let swapped = match subject {
                0 => kubelet(pass, black_box(payload)),
                _ => larder(black_box(payload)),
            };
            let after = time();
            assert_eq!(swapped, changed);
            pair[subject] = Cost {
                wall: after.wall - before.wall,
                cpu: after.cpu - before.cpu,
            };
        }
        costs.push(pair);
    }
    costs
}

#[expect(clippy::cast_precision_loss, reason = "a measurement")]
fn time() -> Cost {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    Cost {
        wall: read(ClockId::Monotonic),
        cpu: read(ClockId::ThreadCPUTime),
    }
}

fn report(case: &str, costs: Vec<[Cost; 2]>) {
    let micros = |subject: usize| {
        let mut walls: Vec<_> = costs.iter().map(|pair| pair[subject].wall).collect();
        format!("{:.1} µs", quartiles(&mut walls)[1] / 1e3)
    };
    let ratio = |of: fn(&Cost) -> f64| {
        let mut ratios: Vec<_> = costs.iter().map(|[k, l]| of(k) / of(l)).collect();
        let [low, median, high] = quartiles(&mut ratios);
        format!("{median:.2} ({low:.2} to {high:.2})")
    };
    println!(
        "{case:<28} {:>11} {:>11}  {:<21} {:<21}",
        micros(0),
        micros(1),
        ratio(|cost| cost.wall),
        ratio(|cost| cost.cpu)
    );
}

fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() * quarter / 4).min(values.len() - 1)])
}
