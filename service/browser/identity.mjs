// The id of a page's worker. The browser stores it, so that reopening a link gives the same worker.

const KEY = "tilewright-worker";

/** Return the stored id and a function that stores one: {kept, keep}. Returns {} if another page of
 * this browser runs that worker, or if the browser stores nothing. `storage` may throw. */
export async function identity(locks, storage) {
  const alone = await new Promise((resolve) => {
    const held = locks.request(KEY, {ifAvailable: true}, (lock) => {
      resolve(Boolean(lock));
      return lock && new Promise(() => {}); // holds the lock until the page closes
    });
    held.catch(() => resolve(false));
  });
  if (!alone) return {};
  const keep = (id) => {
    try {
      storage().setItem(KEY, id);
    } catch {
      // storage is full or forbidden: the next page becomes another worker
    }
  };
  try {
    return {kept: storage().getItem(KEY) ?? "", keep};
  } catch {
    return {}; // the user forbids storage
  }
}
