// The id of a page's worker, which its browser keeps: the same link, opened again, is the same worker.

const KEY = "tilewright-worker";

/** The id of an earlier page, and how to keep one: {kept, keep}; nothing where another page of this
 * browser is that worker now, or the browser keeps nothing. `storage` may throw. */
export async function identity(locks, storage) {
  const alone = await new Promise((resolve) => {
    const held = locks.request(KEY, {ifAvailable: true}, (lock) => {
      resolve(Boolean(lock));
      return lock && new Promise(() => {}); // until the page is gone
    });
    held.catch(() => resolve(false));
  });
  if (!alone) return {};
  const keep = (id) => {
    try {
      storage().setItem(KEY, id);
    } catch {
      // full, or forbidden: the next page is another worker
    }
  };
  try {
    return {kept: storage().getItem(KEY) ?? "", keep};
  } catch {
    return {}; // the user forbids it
  }
}
