//! Figures of benchmarks: quantiles of times, and the usage of a process.

use std::{fmt, fs, time::Duration};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Median, 99th percentile and maximum of some times, in milliseconds. Printed as `p50 / p99 / max ms`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Quantiles {
    /// Of `times`, of which there is at least one.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let last = times.len().checked_sub(1).expect("something was timed");
        // Rounded up: of 200 times the 99th percentile is the second highest, never a lower one.
        let at = |percent: usize| times[(last * percent).div_ceil(100)].as_secs_f64() * 1e3;
        Self {
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} / {:.2} / {:.2} ms", self.p50, self.p99, self.max)
    }
}

/// Memory and CPU time of a process so far, from `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory, in bytes.
    pub resident: u64,
    /// The part of it that belongs to no file, in bytes.
    pub anonymous: u64,
    /// Of all threads, those that have ended included; in steps of 10 ms.
    pub cpu_time: Duration,
}

impl Usage {
    /// Of the process `pid`.
    ///
    /// # Errors
    ///
    /// It does not exist, or belongs to another user.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let bytes = |name: &str| -> anyhow::Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            let kib: u64 = kib
                .with_context(|| format!("no {name} of {pid}"))?
                .parse()?;
            Ok(kib * 1024)
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The second field is the name in brackets and may hold anything; `utime` and `stime` are the 14th and 15th.
        let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
        let ticks = fields.split(' ').skip(11).take(2);
        let ticks = ticks.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Self {
            resident: bytes("VmRSS:")?,
            anonymous: bytes("RssAnon:")?,
            // USER_HZ, which is 100 wherever Linux runs.
            cpu_time: Duration::from_millis(ticks * 10),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_200_times_are_the_middle_the_second_highest_and_the_highest() {
        let times: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let Quantiles { p50, p99, max } = Quantiles::of(times);
        assert_eq!((p50, p99, max), (101.0, 199.0, 200.0));
    }

    #[test]
    fn a_process_has_memory_and_runs() {
        let usage = Usage::of(std::process::id()).expect("this process is there");
        assert!(usage.resident >= usage.anonymous && usage.anonymous > 0);
        assert!(Usage::of(u32::MAX).is_err());
    }
}
