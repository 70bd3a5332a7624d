// Node's tls: 1,000 jobs are put in one go, and all are there. Arguments: the port, and the
// certificate of the authority that the server's certificate must be of.

const fs = require("fs");
const tls = require("tls");

const [port, authority] = process.argv.slice(2);
const options = {
  host: "127.0.0.1",
  port: Number(port),
  ca: fs.readFileSync(authority),
  servername: "localhost",
};
let replies = "";
const socket = tls.connect(options, () => {
  socket.write("put 0 0 60 5\r\nhello\r\n".repeat(1000) + "quit\r\n");
});
socket.on("data", (data) => (replies += data));
socket.on("end", () => {
  const lines = replies.split("\r\n").filter((line) => /^INSERTED \d+$/.test(line));
  console.log(`${lines.length} jobs`);
});
