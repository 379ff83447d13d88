//! What `larder status` says in each situation, and whether `--wait` is over: of the documents that agents have answered.

use clap::Parser as _;
use larder_agent::status::AgentStatus;
use larder_e2e::situations::{SITUATIONS, Situation, Wait};

use super::{is_delivered, pending_pods, selected, text};
use crate::{
    args::{Args, Command, StatusArgs},
    output,
};

fn args(words: &[&str]) -> StatusArgs {
    let words = ["larder", "status"].iter().chain(words);
    match Args::try_parse_from(words).unwrap().command {
        Command::Status(args) => args,
        other => panic!("{other:?}"),
    }
}

fn check(situation: Situation) {
    let name = situation.name;
    let status: AgentStatus = serde_json::from_value(situation.recorded()).unwrap();
    let shown = |words| {
        let args = args(words);
        text(&args, &selected(&args, &status).0, output::now())
    };
    let name_of_pod = format!("default/{}", situation.pod);
    let (all, pod) = (shown(&[]), shown(&[&name_of_pod]));
    for shown in [&all, &pod] {
        let problem = format!("\nproblem: {}", situation.problem);
        assert_eq!(
            shown.contains("\nproblem: "),
            !situation.problem.is_empty(),
            "{name}: {shown}"
        );
        assert!(
            situation.problem.is_empty() || shown.contains(&problem),
            "{name}: {shown}"
        );
        assert!(shown.contains(situation.reason), "{name}: {shown}");
        let [state, why] = situation.hook;
        assert!(
            shown.contains(state) && shown.contains(why),
            "{name}: {shown}"
        );
    }
    let counted = format!(" {}", situation.phase.to_lowercase());
    let head = all.lines().find(|line| line.starts_with("node node-1: "));
    assert!(head.unwrap().contains(&counted), "{name}: {all}");
    let head = format!("pod {name_of_pod}: {} for ", situation.phase);
    assert!(pod.starts_with(&head), "{name}: {pod}");

    for (words, wait) in [
        (&["--wait"][..], situation.wait_for_all),
        (&["--wait", &name_of_pod], situation.wait_for_pod),
    ] {
        let allowing = [words, &["--allow-stale"]].concat();
        let (strict, lenient) = (args(words), args(&allowing));
        let over = [&strict, &lenient].map(|args| is_delivered(args, &status));
        let expected = match wait {
            Wait::Over => [true, true],
            Wait::OverIfStaleIsEnough => [false, true],
            Wait::Pending => [false, false],
        };
        assert_eq!(over, expected, "{name}: {words:?}");
        // What is not over says why.
        for (args, is_over) in [strict, lenient].iter().zip(over) {
            let pending = pending_pods(args, &status);
            assert_eq!(pending.is_empty(), is_over, "{name}: {words:?}: {pending}");
        }
    }
}

#[test]
fn text_and_wait_agree_with_the_other_outputs_in_every_situation() {
    SITUATIONS.into_iter().for_each(check);
}
