<?php

// app/Jobs/SendMail.php

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\InteractsWithQueue;

class SendMail implements ShouldQueue
{
    use InteractsWithQueue, Queueable;

    public $tries = 8;
    public $backoff = [5, 30, 300];
    public $timeout = 60;

    public string $to;

    public function __construct(string $to)
    {
        $this->to = $to;
    }

    public function handle(): void
    {
        if (! str_contains($this->to, '@')) {
            throw new \InvalidArgumentException("{$this->to} is no address");
        }
        echo "sent to {$this->to}\n";
    }
}
