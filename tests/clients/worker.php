<?php
// A worker as many are: it takes a job, does it, deletes it; if that fails it releases it. What it
// gets and what it has done it says a line at a time. Usage: worker.php HOST PORT

require_once 'Pheanstalk/autoload.php';

function work(string $body): void
{
    [$kind] = explode(' ', $body);
    if ($kind === 'crash') {
        exit(1);
    }
    if ($kind === 'release') {
        throw new RuntimeException($body);
    }
}

$client = Pheanstalk\Pheanstalk::create($argv[1], (int) $argv[2]);
$client->watchOnly('work');
while (true) {
    $job = $client->reserve();
    echo "got {$job->getId()} {$job->getData()}\n";
    try {
        work($job->getData());
    } catch (RuntimeException $failed) {
        $client->release($job);
        continue;
    }
    $client->delete($job);
    echo "done {$job->getId()} {$job->getData()}\n";
}
