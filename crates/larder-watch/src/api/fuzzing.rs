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

/// Reads a watch of the target to its end: the object of each change, and why an event is unreadable.
///
/// # Errors
///
/// The watch cannot be opened, or its body cannot be read on.
pub async fn watch<T: Target>(
    client: kube::Client,
    target: T,
    mut seen: impl FnMut(Result<Option<T::Item>, RequestError>),
) -> Result<(), RequestError> {
    let watch = Watch {
        initial_events: true,
        version: None,
        timeout: Duration::from_mins(30),
    };
    let mut events = Api::new(client).watch(target, &watch).await?;
    while let Some(event) = poll_fn(|context| events.poll_next(context)).await {
        seen(match event? {
            WatchEvent::Changed(item) => Ok(Some(item)),
            WatchEvent::UnreadableItem(error) | WatchEvent::UnreadableFrame(error) => Err(error),
            WatchEvent::Deleted(..) | WatchEvent::Bookmark { .. } | WatchEvent::Error(_) => {
                Ok(None)
            }
        });
    }
    Ok(())
}
