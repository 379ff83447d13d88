//! The measurements as a table, beside those of the kubelet.

use std::fmt::Write as _;

use crate::node::Measured;

/// The kubelet's managers: resident memory for each object, the middle of 69 to 76 KiB.
const KUBELET_BYTES_PER_OBJECT: f64 = 72.0 * 1024.0;

/// The kubelet's managers: objects, and milliseconds until all were synced.
const KUBELET_SYNCED_MS: [(usize, f64); 3] = [(500, 440.0), (1000, 2000.0), (2000, 2100.0)];

pub(crate) fn of(rows: &[Measured]) -> String {
    let mut text = String::from(
        "| objects | synced | kubelet's / ours | bare | CPU | server's CPU | connections (watches + others) | memory per object | kubelet's / ours |\n\
         | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n",
    );
    for row in rows {
        let kubelet = KUBELET_SYNCED_MS
            .iter()
            .find(|known| known.0 == row.objects);
        let ratio = kubelet.map_or("–".to_owned(), |known| {
            format!("{:.1}", known.1 / row.synced_ms)
        });
        line(
            &mut text,
            &[
                row.objects.to_string(),
                format!("{:.0} ms", row.synced_ms),
                ratio,
                millis(row.bare_synced_ms),
                format!("{:.0} ms", row.cpu_ms),
                millis(row.server_cpu_ms),
                format!("{} + {}", row.watch_connections, row.request_connections),
                format!("{:.1} KiB", row.bytes_per_object / 1024.0),
                format!("{:.1}", KUBELET_BYTES_PER_OBJECT / row.bytes_per_object),
            ],
        );
    }
    if rows.iter().all(|row| row.latency.is_none()) {
        return text;
    }
    text.push_str(
        "\n| objects | others | write p50 | bare watch p50 / p99 / max | manager p50 / p99 / max | manager / bare (p50) |\n\
         | --: | --- | --: | --: | --: | --: |\n",
    );
    for row in rows {
        for (others, latency) in ["idle", "changing"]
            .into_iter()
            .zip(row.latency.iter().flatten())
        {
            line(
                &mut text,
                &[
                    row.objects.to_string(),
                    others.to_owned(),
                    format!("{:.2} ms", latency.write.p50),
                    latency.bare.to_string(),
                    latency.manager.to_string(),
                    format!("{:.2}", latency.manager.p50 / latency.bare.p50),
                ],
            );
        }
    }
    text
}

fn millis(time: Option<f64>) -> String {
    time.map_or("–".to_owned(), |time| format!("{time:.0} ms"))
}

fn line(text: &mut String, cells: &[String]) {
    writeln!(text, "| {} |", cells.join(" | ")).expect("a String takes everything");
}
