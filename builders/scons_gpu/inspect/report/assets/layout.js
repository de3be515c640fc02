// Where the nodes of a drawing go: what a node is made of stands left of it, what is made from it right.

const BOX = { width: 210, height: 46, across: 64, down: 14, most: 26 };

// Nodes 0 to n - 1, edges [input, user]. Gives [x, y] of each node's middle; y grows downwards.
function place(size, edges) {
  const inputs = Array.from({ length: size }, () => []);
  const users = Array.from({ length: size }, () => []);
  for (const [input, user] of edges) {
    inputs[user].push(input);
    users[input].push(user);
  }
  const layers = layered(ranks(size, inputs, users));
  for (let sweep = 0; sweep < 4; sweep += 1) arrange(layers, sweep % 2 ? users : inputs, sweep % 2 === 1);
  return positions(layers, size);
}

// How far it is to the end: what is made last stands rightmost, and everything as near to its users as can be.
function ranks(size, inputs, users) {
  const distance = new Array(size).fill(0);
  const waiting = users.map((each) => each.length);
  const ready = rowsOf({ rows: size }).filter((node) => !waiting[node]);
  for (let next = 0; next < ready.length; next += 1) {
    for (const input of inputs[ready[next]]) {
      distance[input] = Math.max(distance[input], distance[ready[next]] + 1);
      if (!(waiting[input] -= 1)) ready.push(input);
    }
  }
  const most = Math.max(0, ...distance);
  return distance.map((each) => most - each);
}

function layered(rank) {
  const layers = [];
  rank.forEach((each, node) => (layers[each] ??= []).push(node));
  return layers.filter(Boolean);
}

// Each layer in the order of its neighbours' middles, so that edges cross little.
function arrange(layers, neighbours, backwards) {
  const at = new Map();
  const number = (layer) => layer.forEach((node, index) => at.set(node, index / layer.length));
  layers.forEach(number);
  for (const layer of backwards ? [...layers].reverse() : layers) {
    const middle = new Map(layer.map((node) => {
      const near = neighbours[node];
      return [node, near.length ? near.reduce((sum, each) => sum + at.get(each), 0) / near.length : at.get(node)];
    }));
    layer.sort((one, other) => middle.get(one) - middle.get(other) || one - other);
    number(layer);
  }
}

// A layer of many is folded into several columns.
function positions(layers, size) {
  const found = new Array(size);
  let left = 0;
  for (const layer of layers) {
    const columns = Math.ceil(layer.length / BOX.most);
    const high = Math.ceil(layer.length / columns);
    layer.forEach((node, index) => {
      const column = Math.floor(index / high);
      const inColumn = Math.min(high, layer.length - column * high);
      found[node] = [left + column * (BOX.width + 24) + BOX.width / 2, ((index % high) - (inColumn - 1) / 2) * (BOX.height + BOX.down)];
    });
    left += columns * (BOX.width + 24) - 24 + BOX.across;
  }
  return found;
}
