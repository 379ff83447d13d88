//! Smaller worlds, to find the part of one that shows a fault.

use serde_json::Value;

use super::world::{AccountListing, Listing, OBJECTS, ServiceListing, Side, World};

/// The worlds that lack one thing.
pub(super) fn smaller(world: &World) -> Vec<World> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Side)| {
        for sides in [[true, true], [true, false], [false, true]] {
            let mut changed = World {
                seed: world.seed,
                from: world.from.clone(),
                to: world.to.clone(),
            };
            if sides[0] {
                change(&mut changed.from);
            }
            if sides[1] {
                change(&mut changed.to);
            }
            if changed.to_string() != world.to_string() {
                all.push(changed);
            }
        }
    };
    for object in 0..OBJECTS.len() {
        add(&|side| side.objects[object] = Listing::Outside);
    }
    add(&|side| side.service = ServiceListing::Outside);
    add(&|side| side.accounts = [AccountListing::Outside; 2]);
    add(&|side| side.has_bundle = false);
    for field in [
        "serviceAccountName",
        "enableServiceLinks",
        "automountServiceAccountToken",
        "hostNetwork",
        "nodeName",
    ] {
        add(&|side| drop(side.pod.as_object_mut().map(|pod| pod.remove(field))));
    }
    add(&|side| {
        let metadata = side.metadata.as_object_mut();
        drop(metadata.map(|all| all.remove("annotations")));
    });
    for container in 0..2 {
        add(&|side| {
            let container = side.pod["containers"][container].as_object_mut();
            drop(container.map(|all| all.remove("resources")));
        });
        for part in ["env", "envFrom", "volumeMounts"] {
            for place in 0..4 {
                add(&|side| remove(&mut side.pod["containers"][container][part], place));
            }
        }
    }
    for volume in 0..3 {
        add(&|side| {
            let name = side.pod["volumes"][volume]["name"].clone();
            let is_mounted = side.pod["containers"]
                .to_string()
                .contains(&name.to_string());
            if !is_mounted {
                remove(&mut side.pod["volumes"], volume);
            }
        });
        for source in 0..3 {
            add(&|side| {
                if let Some(sources) = side.pod["volumes"].get_mut(volume) {
                    remove(&mut sources["projected"]["sources"], source);
                    if sources["projected"]["sources"].is_null() {
                        drop(sources.as_object_mut().map(|all| all.remove("projected")));
                    }
                }
            });
        }
    }
    all
}

fn remove(list: &mut Value, place: usize) {
    if let Some(list) = list.as_array_mut()
        && place < list.len()
    {
        list.remove(place);
    }
}
