//! Comments on a change: Markdown that no value leaves, and that fits.

use expect_test::expect;
use serde_json::json;

use super::{POD, check_output, map, run};

#[test]
fn markdown_has_a_table_and_folded_details() {
    check_output(
        "-o markdown",
        expect![[r#"
            **1 pod differs (containers: 1 would not start, 1 needs a restart and keeps the old value until somebody restarts it, 1 sees it without a restart); 1 unreferenced object differs**

            `from from.yaml to to.yaml, compared on TIME

            | pod | container | verdict |
            | --- | --- | --- |
            | `prod/web` | `job` | `would not start: couldn't find key t in Secret prod/token` |
            | `prod/web` | `web` | needs a restart: variables; keeps the old value until somebody restarts it |
            | `prod/web` | `side` | sees it without a restart |

            <details><summary><code>prod/web  Deployment web, to.yaml: document 1, line 2</code></summary>

            ```diff
             container job       would not start: couldn't find key t in Secret prod/token
             container web       needs a restart: variables; keeps the old value until somebody restarts it
               variables
            ~     LEVEL  "info" → "debug"  ConfigMap app
            +     NEW    ConfigMap app
                   @@ -0,0 +1,2 @@
            +      a
            +      b
            -     OLD    "1"               ConfigMap app
               sees shared change 1
             container side      sees it without a restart
               sees shared change 1
             hook 0-signal runs  signal:SIGHUP  volume cfg changed
            ```

            </details>

            <details><summary><code>shared change 1  2 containers see it</code></summary>

            ```diff
            ~ app.conf  0644  ConfigMap files
               @@ -1,3 +1,3 @@
               level = info
            -  port = 80
            +  port = 8080
               user = web
             seen by
               prod/web  web, side
            ```

            </details>

            <details><summary><code>changed objects that no pod references</code></summary>

            ```diff
            ~ ConfigMap prod/loose
            ```

            </details>
        "#]],
    );
}

#[test]
fn markdown_cannot_be_left_by_a_value() {
    let with = |text: &str| [POD, &map(&json!({"a": text}).to_string())].concat();
    let hostile = with("```\n</details>\n# large `````\n");
    let run = run(&with("1"), &hostile, "-o markdown");
    let fences = run.stdout.lines().filter(|line| line.starts_with("``````"));
    assert_eq!(fences.count(), 2, "{}", run.stdout);
    assert!(run.stdout.lines().all(|line| !line.starts_with("# large")));
}

#[test]
fn markdown_of_a_large_difference_fits_into_a_comment() {
    let pods = |value: &str| -> String {
        let pods = (0..100).map(|number| {
            let map = map(&json!({"a": value.repeat(500)}).to_string());
            let pod = [POD, &map]
                .concat()
                .replace("name: app", &format!("name: app-{number}"));
            pod.replace("name: web, n", &format!("name: web-{number}, n"))
        });
        let pods: Vec<_> = pods.collect();
        pods.join("---")
    };
    let run = run(&pods("x\n"), &pods("y\n"), "-o markdown");
    assert_eq!(run.code, 1);
    assert!(run.stdout.len() < 65_536, "{}", run.stdout.len());
    assert!(run.stdout.contains("Left out, because they are too long: "));
}

#[test]
fn markdown_counts_the_pods_that_its_table_lacks() {
    let pods = |value: &str| -> String {
        let pods =
            (0..900).map(|number| POD.replace("name: web, n", &format!("name: web-{number}, n")));
        let pods: Vec<_> = pods.collect();
        pods.join("---") + &map(&format!("{{a: {value}}}"))
    };
    let run = run(&pods("one"), &pods("two"), "-o markdown");
    let shown = run.stdout.lines().filter(|line| line.starts_with("| `"));
    let left_out = 900 - shown.count();
    assert_ne!(left_out, 0);
    let sentence = format!("\nLeft out of the table, because it is too long: {left_out} pods.\n");
    assert!(run.stdout.contains(&sentence), "{}", run.stdout);
}
