//! Entry points of the fuzz targets: how responses are read, without a reflector around them. Not part of the API.

use std::{future::poll_fn, time::Duration};

use super::{Api, Watch, WatchEvent};
use crate::{error::RequestError, target::Target};

/// Lists the target.
///
/// # Errors
///
/// The response is not a list.
pub async fn list<T: Target>(client: kube::Client, target: &T) -> Result<T::State, RequestError> {
    let listed = Api::new(client).list(target, None).await?;
    Ok(listed.state)
}

/// Reads a watch of the target to its end: the kind of each event, and the object of a change.
///
/// # Errors
///
/// The watch cannot be opened, or its body cannot be read on.
pub async fn watch<T: Target>(
    client: kube::Client,
    target: T,
    mut seen: impl FnMut(&'static str, Option<T::Item>),
) -> Result<(), RequestError> {
    let watch = Watch {
        initial_events: true,
        version: None,
        timeout: Duration::from_mins(30),
    };
    let mut events = Api::new(client).watch(target, &watch).await?;
    while let Some(event) = poll_fn(|context| events.poll_next(context)).await {
        match event? {
            WatchEvent::Changed(item) => seen("changed", Some(item)),
            WatchEvent::Deleted(..) => seen("deleted", None),
            WatchEvent::Bookmark {
                initial_events_end, ..
            } if initial_events_end => seen("end of initial events", None),
            WatchEvent::Bookmark { .. } => seen("bookmark", None),
            WatchEvent::Error(_) => seen("error", None),
            WatchEvent::UnreadableItem(_) => seen("unreadable item", None),
            WatchEvent::UnreadableFrame(_) => seen("unreadable frame", None),
        }
    }
    Ok(())
}
